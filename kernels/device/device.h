// Read first: one GPU of this process. Everything that touches it goes through here, so that errors
// become exceptions that name what was asked for, and a device that has failed for good is not
// asked again.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "codegen/compile.h"
#include "kernels/device/capture_gate.h"
#include "kernels/device/description.h"
#include "kernels/device/driver.h"

namespace tenon {
class DiskCache;
}

namespace tenon::device {

// Memory ran out: what was wanted, for what, and how much there was. The session stays usable.
class OutOfMemory : public UserError {
 public:
  using UserError::UserError;
};
// The device failed for good (an illegal address, a lost device): every later call throws this,
// with the first cause.
class DeviceLost : public UserError {
 public:
  using UserError::UserError;
};

struct MemoryInfo {
  size_t free = 0, total = 0;
};

// A loaded kernel, ready to launch. Lives as long as someone holds it.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;
  FunctionHandle function = nullptr;
  int threads = 0;
  int64_t shared_bytes = 0;
  int registers = 0;
  int local_bytes = 0;  // of a thread: what did not fit its registers
  std::string name;
  std::vector<codegen::TmaDescriptor> tma_descriptors;  // a launch brings one TensorMap for each
  bool pdl = false;  // programmatic dependent launch: overlaps the previous one's end
  int cluster = 1;   // CTAs that share their memory
};

class Device {
 public:
  // GPUs that the driver offers (CUDA_VISIBLE_DEVICES is honoured by it), none where there is no
  // driver. Never throws.
  static std::vector<Description> list();
  // Why there is no driver, or why some of its GPUs are not in the list; one sentence each.
  static std::vector<std::string> left_out();
  // One object per GPU and process; kept while anyone holds it. Throws UserError with the reason.
  static std::shared_ptr<Device> open(int ordinal);
  virtual ~Device() = default;

  virtual const Description& description() const = 0;
  const Driver& driver() const { return *driver_; }
  // Makes the device the calling thread's. Cheap; every method here begins with it.
  virtual void make_current() = 0;
  // Throws for everything but success: OutOfMemory, DeviceLost, else UserError with `what`.
  virtual void check(Result result, std::string_view what) = 0;
  virtual std::optional<std::string> failure() const = 0;  // first cause, once it failed for good
  // The same for destructors: false where the driver must not be called any more, and results that
  // nobody can act on.
  virtual bool try_make_current() noexcept = 0;
  virtual void note(Result result) noexcept = 0;

  // `purpose` goes into the message when memory runs out: "weight 'w1'", "arena of tenon_0".
  virtual Address allocate(size_t bytes, std::string_view purpose) = 0;
  virtual void release(Address address) noexcept = 0;
  virtual void* allocate_pinned(size_t bytes, std::string_view purpose) = 0;
  virtual void release_pinned(void* memory) noexcept = 0;
  virtual MemoryInfo memory() = 0;
  // Waits for everything that anybody has put on this GPU, on streams of others as well. Waits for
  // captures of ours to end first; one that others have under way makes the driver refuse.
  void synchronize();
  // Waits for what stands on the legacy default stream, where callers work who made no stream of
  // their own. Streams of ours do not wait for it by themselves; asking costs little while it is
  // idle.
  void wait_for_default_stream();
  CaptureGate& captures() { return captures_; }

  // Machine code by nvJitLink, else by the driver. Equal code is loaded once per device.
  virtual std::shared_ptr<const LoadedKernel> load(const codegen::GpuCode& code,
                                                   DiskCache* cache = nullptr) = 0;

 protected:
  const Driver* driver_ = nullptr;

 private:
  CaptureGate captures_;
};

// While it lives, the device is this thread's and nothing else here changes that: asking for it
// again costs no call of the driver. For the part of a Run that calls nobody outside.
class CurrentHere {
 public:
  explicit CurrentHere(Device& device) : before_(held_) {
    device.make_current();
    held_ = &device;
  }
  ~CurrentHere() { held_ = before_; }
  CurrentHere(const CurrentHere&) = delete;
  CurrentHere& operator=(const CurrentHere&) = delete;
  static bool holds(const Device& device) { return held_ == &device; }

 private:
  static inline thread_local const Device* held_ = nullptr;
  const Device* before_;
};

// Owned device memory; empty after a move.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<Device> device, size_t bytes, std::string_view purpose);
  Buffer(std::shared_ptr<void> others, size_t bytes);  // that somebody else allocated
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Buffer();
  Address address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept;
  std::shared_ptr<Device> device_;  // null: the memory is not its own
  std::shared_ptr<void> others_;
  Address address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace tenon::device
