// Device memory with bytes around it that nobody may write: what a kernel that runs out of bounds
// is caught by.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/device/device.h"

namespace tenon::kernels {

class Redzones {
 public:
  explicit Redzones(std::shared_ptr<device::Device> device) : device_(std::move(device)) {}

  // Poisoned: floats of it are NaN. Lives as long as someone holds it.
  std::shared_ptr<void> make(size_t bytes, std::string name);
  // Waits for the device. Empty: nothing was written there since the memory was made or this was
  // asked last.
  std::string find_damage();

 private:
  struct Piece;
  std::shared_ptr<device::Device> device_;
  std::vector<std::weak_ptr<Piece>> pieces_;
};

}  // namespace tenon::kernels
