#include "distributed/rank_device.h"

#include <utility>

#include "kernels/device/device.h"

namespace tenon::distributed {
namespace {

class Gpu final : public RankDevice {
 public:
  explicit Gpu(std::shared_ptr<device::Device> device)
      : device_(std::move(device)),
        scratch_(device_->allocate(kScratchBytes, "barriers between ranks")) {}
  ~Gpu() override { device_->release(scratch_); }

  void make_current() override { device_->make_current(); }
  std::shared_ptr<device::Device> gpu() override { return device_; }
  int compute_major() const override { return device_->description().compute_major; }
  std::string place() const override { return device_->description().pci_bus_id; }
  std::string arch() const override { return device_->description().arch; }
  void* scratch() override { return reinterpret_cast<void*>(scratch_); }
  void fill_zeros(void* memory, size_t bytes, void* stream) override {
    device_->make_current();
    device_->check(device_->driver().fill_async(reinterpret_cast<device::Address>(memory), 0, bytes,
                                                static_cast<device::StreamHandle>(stream)),
                   "fill what no rank sends with zeros");
  }
  void copy(void* to, const void* from, size_t bytes, void* stream) override {
    device_->make_current();
    device_->check(device_->driver().copy_async(reinterpret_cast<device::Address>(to),
                                                reinterpret_cast<device::Address>(from), bytes,
                                                static_cast<device::StreamHandle>(stream)),
                   "copy what ranks exchange");
  }

 private:
  static constexpr size_t kScratchBytes = 256;
  const std::shared_ptr<device::Device> device_;
  const device::Address scratch_;
};

}  // namespace

std::shared_ptr<RankDevice> make_rank_device(std::shared_ptr<device::Device> device) {
  return std::make_shared<Gpu>(std::move(device));
}

}  // namespace tenon::distributed
