#include "distributed/rendezvous/frame_channel.h"

#include <fmt/format.h>
#include <poll.h>

#include <cerrno>

#include "base/byte_form.h"
#include "base/error.h"

namespace tenon::distributed {
namespace {

constexpr size_t kHeaderBytes = 4;
constexpr size_t kMacBytes = 16;
// What is queued for a peer that does not read; and what is read at a time, so that one peer who
// sends much does not keep a thread from the others.
constexpr size_t kMostOutput = size_t{64} << 20, kAtATime = size_t{256} << 10;

std::string mac(const Digest& key, uint64_t number, std::string_view frame) {
  ByteWriter signed_bytes;
  signed_bytes.number(number);
  signed_bytes.number(static_cast<uint32_t>(frame.size()));
  signed_bytes.bytes(frame);
  return std::string(bytes_of(hmac_sha256(key, signed_bytes.take())).substr(0, kMacBytes));
}

}  // namespace

FrameChannel::FrameChannel(Socket socket, size_t longest)
    : socket_(std::move(socket)), longest_(longest) {}

void FrameChannel::end(std::string reason) {
  if (ended_.empty()) ended_ = std::move(reason);
}

void FrameChannel::push(std::string_view frame) {
  if (frame.size() > longest_) {
    throw InternalError(fmt::format("a frame of {} bytes is over {}", frame.size(), longest_));
  }
  if (!ended_.empty()) return;
  if (output_.size() - written_ > kMostOutput) return end("it does not read what it is sent");
  ByteWriter header;
  header.number(static_cast<uint32_t>(frame.size()));
  output_ += header.take();
  output_ += frame;
  if (keys_) output_ += mac(keys_->sending, sent_++, frame);
}

size_t FrameChannel::mac_bytes() const { return keys_ ? kMacBytes : 0; }

void FrameChannel::flush() {
  while (has_output() && ended_.empty()) {
    const ssize_t count = ::send(socket_.fd(), output_.data() + written_, output_.size() - written_,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (count < 0) return end(error_text(errno));
    written_ += static_cast<size_t>(count);
  }
  output_.clear();
  written_ = 0;
}

bool FrameChannel::fill() {
  input_.erase(0, taken_);
  taken_ = 0;
  char bytes[16 << 10];
  size_t total = 0;
  while (total < kAtATime) {
    const ssize_t count = ::recv(socket_.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (count <= 0) {
      end(count == 0 ? "the other side closed the connection" : error_text(errno));
      break;
    }
    input_.append(bytes, static_cast<size_t>(count));
    total += static_cast<size_t>(count);
  }
  return total > 0;
}

std::optional<std::string> FrameChannel::next() {
  if (broke_rules_) return std::nullopt;  // nothing behind it is believed
  const std::string_view rest = std::string_view(input_).substr(taken_);
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const auto length = ByteReader(rest).number<uint32_t>();
  if (length > longest_) {
    broke_rules_ = true;
    end(fmt::format("it announced a frame of {} bytes; at most {} are taken", length, longest_));
    return std::nullopt;
  }
  if (rest.size() - kHeaderBytes < length + mac_bytes()) return std::nullopt;
  const std::string_view frame = rest.substr(kHeaderBytes, length);
  if (keys_ && !equal(rest.substr(kHeaderBytes + length, kMacBytes),
                      mac(keys_->receiving, received_++, frame))) {
    broke_rules_ = true;
    end("a frame of it does not carry the MAC that the job's token gives: somebody between the "
        "ranks changes, repeats or leaves out what they say, or the ranks run different versions "
        "of Tenon");
    return std::nullopt;
  }
  taken_ += kHeaderBytes + length + mac_bytes();
  return std::string(frame);
}

std::optional<std::string> wait_for_frame(FrameChannel& channel, Clock::time_point limit) {
  while (true) {
    channel.flush();
    if (auto frame = channel.next()) return frame;
    if (!channel.ended().empty() || Clock::now() >= limit) return std::nullopt;
    pollfd ready{.fd = channel.fd(),
                 .events = static_cast<int16_t>(channel.has_output() ? POLLIN | POLLOUT : POLLIN),
                 .revents = 0};
    if (::poll(&ready, 1, poll_milliseconds(limit)) > 0) channel.fill();
  }
}

}  // namespace tenon::distributed
