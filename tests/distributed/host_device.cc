#include "tests/distributed/host_device.h"

#include <array>
#include <cstring>
#include <utility>

namespace tenon::distributed {
namespace {

class HostDevice final : public RankDevice {
 public:
  HostDevice(int compute_major, std::string place)
      : compute_major_(compute_major), place_(std::move(place)) {}
  void make_current() override {}
  int compute_major() const override { return compute_major_; }
  std::string place() const override { return place_; }
  std::string arch() const override { return "sm_" + std::to_string(compute_major_) + "0"; }
  void* scratch() override { return scratch_.data(); }
  void fill_zeros(void* memory, size_t bytes, void*) override { std::memset(memory, 0, bytes); }
  void copy(void* to, const void* from, size_t bytes, void*) override {
    std::memmove(to, from, bytes);
  }

 private:
  const int compute_major_;
  const std::string place_;
  std::array<char, 16> scratch_{};
};

}  // namespace

std::shared_ptr<RankDevice> host_device(int compute_major, const std::string& place) {
  return std::make_shared<HostDevice>(compute_major, place);
}

}  // namespace tenon::distributed
