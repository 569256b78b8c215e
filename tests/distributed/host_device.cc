#include "tests/distributed/host_device.h"

#include <array>
#include <cstring>

namespace tenon::distributed {
namespace {

class HostDevice final : public RankDevice {
 public:
  explicit HostDevice(int compute_major) : compute_major_(compute_major) {}
  void make_current() override {}
  int compute_major() const override { return compute_major_; }
  void* scratch() override { return scratch_.data(); }
  void fill_zeros(void* memory, size_t bytes, void*) override { std::memset(memory, 0, bytes); }
  void copy(void* to, const void* from, size_t bytes, void*) override {
    std::memmove(to, from, bytes);
  }

 private:
  const int compute_major_;
  std::array<char, 16> scratch_{};
};

}  // namespace

std::shared_ptr<RankDevice> host_device(int compute_major) {
  return std::make_shared<HostDevice>(compute_major);
}

}  // namespace tenon::distributed
