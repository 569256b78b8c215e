// TCP sockets that never block: waiting is done by poll, with a time limit.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::distributed {

using Clock = std::chrono::steady_clock;

// How long poll may sleep until `time`, rounded up, at least 0.
int poll_milliseconds(Clock::time_point time);

struct HostAndPort {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "10.0.0.1:29600", "[::1]:29600"; `source` is the option that messages name.
HostAndPort parse_address(std::string_view text, std::string_view source);

// Whether that leads to this host and no other, whoever reads it: an address of the loopback
// interface, or "localhost".
bool is_loopback(const std::string& host);

// A file descriptor that is closed with its object.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

 private:
  int release();
  int fd_ = -1;
};

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;
  uint16_t port() const;
  Endpoint with_port(uint16_t port) const;
  std::string text() const;  // "127.0.0.1:29600", "[::1]:29600"
};

// All addresses that the host's name has, IPv4 and IPv6, with each of the ports in turn; a
// UserError where it has none.
std::vector<Endpoint> resolve(const std::string& host, std::span<const uint16_t> ports);

// Either a socket or what went wrong.
struct OpenedSocket {
  Socket socket;
  std::string error;
  int error_number = 0;
};
OpenedSocket listen_at(const Endpoint& endpoint);
OpenedSocket connect_to(const Endpoint& endpoint, Clock::time_point limit);

Endpoint local_endpoint(const Socket& socket);

// Of a connection: small frames at once, and a peer whose host is gone is noticed by `silence`.
void tune_connection(const Socket& socket, std::chrono::milliseconds silence);
std::string error_text(int error_number);

// Wakes a thread out of poll.
class Waker {
 public:
  Waker();
  void wake();
  void clear();
  int fd() const { return event_.fd(); }

 private:
  Socket event_;
};

}  // namespace tenon::distributed
