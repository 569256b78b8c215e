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

Addresses resolve(const std::string& name, const char* port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = name.empty() ? EAI_NONAME : getaddrinfo(name.c_str(), port, &hints, &found);
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

// The near end of a socket that is bound or connected to the first address of `name` that can be.
// Of datagrams: nothing is sent. Empty: none can, for `error`.
std::string local_name(const std::string& name,
                       int (*attach)(int socket, const sockaddr* address, socklen_t size),
                       const char* port, int& error) {
  const Addresses found = resolve(name, port);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const int socket = ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, 0);
    sockaddr_storage here{};
    socklen_t size = sizeof here;
    const bool is_attached = socket >= 0 && attach(socket, one->ai_addr, one->ai_addrlen) == 0 &&
                             getsockname(socket, reinterpret_cast<sockaddr*>(&here), &size) == 0;
    if (!is_attached) error = errno;
    if (socket >= 0) ::close(socket);
    if (is_attached) return text_of(reinterpret_cast<sockaddr*>(&here), size);
  }
  return "";
}

}  // namespace

std::string own_address(const std::string& name) {
  int error = 0;
  const std::string found = local_name(name, ::bind, "0", error);
  if (!found.empty()) return found;
  throw UserError(fmt::format("ranks cannot connect to '{}', give an address of this host: {}",
                              name, std::strerror(error)));
}

std::string address_towards(const std::string& host) {
  int error = 0;
  const std::string found = local_name(host, ::connect, "9", error);
  if (!found.empty()) return found;
  throw UserError(fmt::format("there is no way from here to '{}': {}", host, std::strerror(error)));
}

}  // namespace tenon::distributed
