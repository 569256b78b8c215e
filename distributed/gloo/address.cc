#include "distributed/gloo/address.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace tenon::distributed {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // The service makes the port a number: connect refuses port 0 on some systems.
  const int error = name.empty() ? EAI_NONAME : getaddrinfo(name.c_str(), "9", &hints, &found);
  if (error != 0) {
    throw UserError(
        fmt::format("'{}' is no host that this one knows: {}", name, gai_strerror(error)));
  }
  return {found, freeaddrinfo};
}

std::string text_of(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  const int error = getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  if (error != 0) throw UserError(fmt::format("an address has no text: {}", gai_strerror(error)));
  return text;
}

}  // namespace

std::string numeric_address(const std::string& name) {
  const Addresses found = resolve(name);
  return text_of(found->ai_addr, found->ai_addrlen);
}

std::string address_towards(const std::string& host) {
  const Addresses found = resolve(host);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
    sockaddr_storage here{};
    socklen_t size = sizeof here;
    // Of datagrams: it chooses a way and sends nothing.
    const bool has_way = socket >= 0 && ::connect(socket, one->ai_addr, one->ai_addrlen) == 0 &&
                         getsockname(socket, reinterpret_cast<sockaddr*>(&here), &size) == 0;
    if (!has_way) error = errno;
    if (socket >= 0) ::close(socket);
    if (has_way) return text_of(reinterpret_cast<sockaddr*>(&here), size);
  }
  throw UserError(fmt::format("there is no way from here to '{}': {}", host, std::strerror(error)));
}

}  // namespace tenon::distributed
