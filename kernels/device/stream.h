// Work in order on one device: copies, launches, events, and capture into graphs.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string_view>

#include "kernels/device/device.h"

namespace tenon::device {

class Event {
 public:
  explicit Event(std::shared_ptr<Device> device, bool timed = false);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  EventHandle handle() const { return handle_; }
  bool done();
  void synchronize();
  static float milliseconds(Event& first, Event& second);

 private:
  std::shared_ptr<Device> device_;
  EventHandle handle_ = nullptr;
};

// A captured sequence of launches and copies.
class Graph {
 public:
  Graph(std::shared_ptr<Device> device, GraphHandle graph);  // takes over and instantiates
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  GraphExecHandle handle() const { return exec_; }
  // The same sequence with other addresses and sizes; false: it must be instantiated anew. Takes
  // over `graph` either way.
  bool update(GraphHandle graph);

 private:
  std::shared_ptr<Device> device_;
  GraphExecHandle exec_ = nullptr;
};

struct LaunchWishes {
  int64_t shared_bytes = 0;  // of a CTA; at least what the kernel needs
  // Does not begin before everything enqueued so far has ended, even if the kernel could.
  bool after_all = false;
};

// Blocks of kernels on an urgent stream come before those of others that have not begun.
enum class Priority : uint8_t { kUsual, kUrgent };

class Stream {
 public:
  explicit Stream(std::shared_ptr<Device> device, Priority priority = Priority::kUsual);  // its own
  Stream(std::shared_ptr<Device> device, StreamHandle borrowed);  // the caller's
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device& device() const { return *device_; }
  StreamHandle handle() const { return handle_; }
  // Keeps a stream that is some Stream's own from ending with it; null where it is nobody's here.
  static std::shared_ptr<const void> keep_alive(StreamHandle handle);

  // Host memory may be pageable: the driver then stages it and returns when it has been read.
  void copy(Address to, Address from, size_t bytes);
  void fill(Address to, unsigned char value, size_t bytes);
  // One CTA per task. Arguments are 8 bytes each, in the order of the kernel's parameters; then
  // come its TMA descriptors.
  void launch(const LoadedKernel& kernel, int64_t tasks, std::span<const uint64_t> arguments,
              std::span<const TensorMap> descriptors = {}, const LaunchWishes& wishes = {});
  void launch(const Graph& graph);
  void record(Event& event);
  void wait(const Event& event);

  bool capturing();
  void begin_capture();
  GraphHandle end_capture();        // throws UserError where the capture was refused or broken
  void abandon_capture() noexcept;  // nothing comes of it

  // Throws UserError naming the stream's last work where it is not done by the deadline; 0: waits.
  void synchronize(std::chrono::milliseconds deadline = std::chrono::milliseconds(0));

 private:
  class Owned;
  std::shared_ptr<Device> device_;
  StreamHandle handle_ = nullptr;
  std::shared_ptr<const Owned> owned_;  // null: the caller's
  bool captures_ = false;               // began a capture that it has not ended
  void remember(std::string_view work);
  Result launch_with_attributes(const LoadedKernel& kernel, unsigned tasks, int64_t shared_bytes,
                                bool pdl, void** pointers);
  void leave_capture() noexcept;
  std::array<char, 48> last_work_{};  // its name, cut short: a warm run allocates nothing
};

}  // namespace tenon::device
