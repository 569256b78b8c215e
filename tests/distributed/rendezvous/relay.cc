#include "relay.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <memory>
#include <utility>

#include "base/byte_form.h"

namespace tenon::distributed {
namespace {

constexpr size_t kLengthBytes = 4, kMacBytes = 16;
constexpr int kTurnMilliseconds = 20;

bool has_input(const Socket& socket) {
  pollfd entry{.fd = socket.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

Relay::Relay(const Endpoint& at, const Endpoint& to, Meddle meddle)
    : to_(to), meddle_(std::move(meddle)) {
  OpenedSocket opened = listen_at(at);
  EXPECT_TRUE(opened.socket) << at.text() << ": " << opened.error;
  listening_ = std::move(opened.socket);
  thread_ = std::thread([this] { listen(); });
}

Relay::~Relay() {
  stopping_ = true;
  thread_.join();
  for (std::thread& thread : served_) thread.join();
}

void Relay::listen() {
  while (!stopping_) {
    pollfd entry{.fd = listening_.fd(), .events = POLLIN, .revents = 0};
    if (::poll(&entry, 1, kTurnMilliseconds) <= 0) continue;
    Socket rank(::accept4(listening_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!rank) continue;
    ++connections_;
    served_.emplace_back(
        [this, held = std::make_shared<Socket>(std::move(rank))] { serve(std::move(*held)); });
  }
}

void Relay::serve(Socket rank) {
  const OpenedSocket server = connect_to(to_, Clock::now() + std::chrono::seconds(2));
  if (!server.socket) return;
  std::string unread[2];
  int number[2] = {0, 0};
  while (!stopping_) {
    pollfd entries[] = {{.fd = rank.fd(), .events = POLLIN, .revents = 0},
                        {.fd = server.socket.fd(), .events = POLLIN, .revents = 0}};
    (void)::poll(entries, 2, kTurnMilliseconds);
    if (has_input(rank) && !pass(rank, server.socket, Direction::kToServer, unread[0], number[0])) {
      return;
    }
    if (has_input(server.socket) &&
        !pass(server.socket, rank, Direction::kToRank, unread[1], number[1])) {
      return;
    }
  }
}

// False: one side has closed its end.
bool Relay::pass(const Socket& from, const Socket& to, Direction direction, std::string& unread,
                 int& number) {
  char bytes[16 << 10];
  const ssize_t count = ::recv(from.fd(), bytes, sizeof(bytes), 0);
  if (count <= 0) return false;
  unread.append(bytes, static_cast<size_t>(count));
  const int greeting = direction == Direction::kToServer ? 1 : 2;
  while (unread.size() >= kLengthBytes) {
    const size_t size =
        kLengthBytes + ByteReader(unread).number<uint32_t>() + (number < greeting ? 0 : kMacBytes);
    if (unread.size() < size) break;
    std::string unit = unread.substr(0, size);
    unread.erase(0, size);
    if (number >= greeting) passed_ += size;
    const std::string meddled = meddle_(direction, number - greeting, std::move(unit));
    ++number;
    if (::send(to.fd(), meddled.data(), meddled.size(), MSG_NOSIGNAL) < 0) return false;
  }
  return true;
}

}  // namespace tenon::distributed
