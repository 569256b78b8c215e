// What an engine needs of its rank's GPU. Tests have one whose memory is the host's.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace tenon::device {
class Device;
}

namespace tenon::distributed {

class RankDevice {
 public:
  virtual ~RankDevice() = default;
  virtual void make_current() = 0;
  // The GPU itself; null where there is none.
  virtual std::shared_ptr<device::Device> gpu() { return nullptr; }
  virtual int compute_major() const = 0;
  // Which GPU of its host it is, and of which kind: "0000:1b:00.0", "sm_90a".
  virtual std::string place() const = 0;
  virtual std::string arch() const = 0;
  virtual void* scratch() = 0;  // some bytes of memory that nobody reads
  virtual void fill_zeros(void* memory, size_t bytes, void* stream) = 0;
  virtual void copy(void* to, const void* from, size_t bytes, void* stream) = 0;
};

std::shared_ptr<RankDevice> make_rank_device(std::shared_ptr<device::Device> device);

}  // namespace tenon::distributed
