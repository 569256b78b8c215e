// Somebody between a rank and rank 0, who takes a port, passes on what both say, and meddles.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {

class Relay {
 public:
  enum class Direction { kToServer, kToRank };
  // Of one direction of one connection, by turns: what to send on for the how manieth unit. Units
  // are frames with their length, and behind the greeting (numbers below 0) with their MAC.
  using Meddle = std::function<std::string(Direction direction, int number, std::string unit)>;

  Relay(const Endpoint& at, const Endpoint& to, Meddle meddle);
  ~Relay();

  // Connections that it took, and bytes that it passed on behind the greeting.
  int connections() const { return connections_; }
  size_t passed() const { return passed_; }

 private:
  void listen();
  void serve(Socket rank);
  bool pass(const Socket& from, const Socket& to, Direction direction, std::string& unread,
            int& number);

  const Endpoint to_;
  const Meddle meddle_;
  Socket listening_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int> connections_ = 0;
  std::atomic<size_t> passed_ = 0;
  std::vector<std::thread> served_;
  std::thread thread_;
};

}  // namespace tenon::distributed
