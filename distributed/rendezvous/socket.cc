#include "distributed/rendezvous/socket.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace tenon::distributed {
namespace {

OpenedSocket failed(int error_number) {
  return {.socket = {}, .error = error_text(error_number), .error_number = error_number};
}

Socket open_socket(int family) {
  return Socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

void set_option(const Socket& socket, int level, int name, int value) {
  // What the kernel refuses here costs time, nothing else.
  (void)::setsockopt(socket.fd(), level, name, &value, sizeof(value));
}

// A port that is nobody's may be the one that the kernel gives to the caller, who then reaches
// itself and keeps rank 0 from the port.
bool reached_itself(const Socket& socket) {
  Endpoint far;
  far.length = sizeof(far.address);
  return ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&far.address), &far.length) == 0 &&
         far.text() == local_endpoint(socket).text();
}

OpenedSocket connected(Socket socket) {
  if (!reached_itself(socket)) return {.socket = std::move(socket), .error = {}};
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  (void)::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  return failed(ECONNREFUSED);
}

// A host that means "all of mine": nobody can be reached there, and strangers would be heard.
bool is_wildcard(std::string_view host) { return host == "0.0.0.0" || host == "::"; }

}  // namespace

int poll_milliseconds(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 3'600'000));
}

HostAndPort parse_address(std::string_view text, std::string_view source) {
  const auto refuse = [&](std::string_view why) {
    throw UserError(
        fmt::format("{}={}: {}; expected host:port, such as 10.0.0.1:29600 or "
                    "[fd00::1]:29600",
                    source, text, why));
  };
  const size_t colon = text.rfind(':');
  if (colon == text.npos) refuse("there is no port");
  std::string_view host = text.substr(0, colon), digits = text.substr(colon + 1);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != host.npos) {
    refuse("an IPv6 address needs brackets");
  }
  if (host.empty()) refuse("there is no host");
  if (is_wildcard(host)) refuse("this stands for all addresses, name the one to meet at");
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size() || port == 0) {
    refuse("the port is not a number from 1 to 65535");
  }
  return {std::string(host), port};
}

bool is_loopback(const std::string& host) {
  in_addr four{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return host == "localhost";
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

int Socket::release() { return std::exchange(fd_, -1); }

uint16_t Endpoint::port() const {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
}

std::string Endpoint::text() const {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof(host), port,
                    sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

Endpoint Endpoint::with_port(uint16_t port) const {
  Endpoint endpoint = *this;
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&endpoint.address)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&endpoint.address)->sin_port = htons(port);
  }
  return endpoint;
}

std::vector<Endpoint> resolve(const std::string& host, std::span<const uint16_t> ports) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found);
  if (status != 0) {
    throw UserError(fmt::format("the host '{}', where the ranks are to meet, has no address: {}",
                                host, ::gai_strerror(status)));
  }
  std::vector<Endpoint> endpoints;
  for (const uint16_t port : ports) {
    for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
      Endpoint endpoint;
      endpoint.length = entry->ai_addrlen;
      std::memcpy(&endpoint.address, entry->ai_addr, entry->ai_addrlen);
      endpoints.push_back(endpoint.with_port(port));
    }
  }
  ::freeaddrinfo(found);
  return endpoints;
}

OpenedSocket listen_at(const Endpoint& endpoint) {
  Socket socket = open_socket(endpoint.address.ss_family);
  if (!socket) return failed(errno);
  // A port that an earlier group has used is free, although connections of it may linger.
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  if (endpoint.address.ss_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.length) !=
          0 ||
      ::listen(socket.fd(), SOMAXCONN) != 0) {
    return failed(errno);
  }
  return {.socket = std::move(socket), .error = {}};
}

OpenedSocket connect_to(const Endpoint& endpoint, Clock::time_point limit) {
  Socket socket = open_socket(endpoint.address.ss_family);
  if (!socket) return failed(errno);
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);  // its port may be one that rank 0 wants
  if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&endpoint.address),
                endpoint.length) == 0) {
    return connected(std::move(socket));
  }
  if (errno != EINPROGRESS && errno != EINTR) return failed(errno);
  pollfd ready{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  int count = 0;
  do {
    count = ::poll(&ready, 1, poll_milliseconds(limit));
  } while (count < 0 && errno == EINTR);
  if (count == 0) return failed(ETIMEDOUT);
  int error_number = 0;
  socklen_t length = sizeof(error_number);
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error_number, &length) != 0) {
    error_number = errno;
  }
  if (error_number != 0) return failed(error_number);
  return connected(std::move(socket));
}

Endpoint local_endpoint(const Socket& socket) {
  Endpoint endpoint;
  endpoint.length = sizeof(endpoint.address);
  (void)::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&endpoint.address),
                      &endpoint.length);
  return endpoint;
}

void tune_connection(const Socket& socket, std::chrono::milliseconds silence) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::min<int64_t>(silence.count(), 3'600'000)));
}

std::string error_text(int error_number) { return std::system_category().message(error_number); }

Waker::Waker() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!event_) throw std::system_error(errno, std::system_category(), "eventfd");
}

void Waker::wake() {
  const uint64_t one = 1;
  (void)!::write(event_.fd(), &one, sizeof(one));
}

void Waker::clear() {
  uint64_t count = 0;
  (void)!::read(event_.fd(), &count, sizeof(count));
}

}  // namespace tenon::distributed
