// Frames over a socket that does not block: four bytes of length, then so many bytes; once both
// sides have keys, a MAC behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distributed/rendezvous/job_token.h"
#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {

// One for each direction, so that nobody can send a side its own frames back.
struct FrameKeys {
  Digest sending{}, receiving{};
};

class FrameChannel {
 public:
  // `longest`: a peer that announces a longer frame is cut off.
  FrameChannel(Socket socket, size_t longest);

  void set_longest(size_t longest) { longest_ = longest; }
  size_t longest() const { return longest_; }

  // From the next frame on, both ways: each carries a MAC over its number, its length and its
  // bytes. What was changed, repeated, moved or left out on the way ends the connection.
  void sign_frames(const FrameKeys& keys) { keys_ = keys; }

  // Queues; flush() writes what the socket takes.
  void push(std::string_view frame);
  void flush();
  bool has_output() const { return written_ < output_.size(); }

  // Reads what has come, and tells whether anything has. Frames that came whole before the end can
  // still be had.
  bool fill();
  std::optional<std::string> next();

  // Why it ended: the peer closed it, broke the rules, or does not read; empty while it is open.
  const std::string& ended() const { return ended_; }
  // The peer does not speak our language.
  bool broke_rules() const { return broke_rules_; }
  int fd() const { return socket_.fd(); }
  void close() { socket_.close(); }

 private:
  void end(std::string reason);
  size_t mac_bytes() const;

  Socket socket_;
  size_t longest_;
  std::string input_, output_;
  size_t taken_ = 0, written_ = 0;
  std::optional<FrameKeys> keys_;
  uint64_t sent_ = 0, received_ = 0;  // signed frames
  std::string ended_;
  bool broke_rules_ = false;
};

// Of a channel that one thread has alone: the next frame, or nothing by `limit` or at its end.
std::optional<std::string> wait_for_frame(FrameChannel& channel, Clock::time_point limit);

}  // namespace tenon::distributed
