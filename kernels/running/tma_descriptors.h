// The TMA descriptors that launches bring to kernels which read matrices through TMA. Encoded when
// an address or a size is new; the last few are kept, so that a warm Run encodes nothing.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "kernels/device/tensor_map.h"

namespace tenon::kernels {

// Of one launch, in one run state.
class TmaDescriptors {
 public:
  TmaDescriptors() = default;
  explicit TmaDescriptors(const std::vector<codegen::TmaDescriptor>& described)
      : descriptors_(described.size()) {
    for (size_t i = 0; i < described.size(); ++i) kept_.push_back({&described[i], {}, 0});
  }

  // `arguments` as of the launch. Valid until the next call. Throws UserError naming `node` where
  // TMA cannot read a matrix.
  std::span<const device::TensorMap> encode(device::Device& device, const std::string& node,
                                            std::span<const uint64_t> arguments);

 private:
  struct Encoded {
    device::MappedMatrix matrix;
    device::TensorMap descriptor;
  };
  static constexpr size_t kKept = 4;  // as many as graphs of one shape
  struct Kept {
    const codegen::TmaDescriptor* described = nullptr;
    std::array<Encoded, kKept> encoded;
    size_t next = 0;  // the oldest
  };
  static const device::TensorMap& find(Kept& kept, const device::MappedMatrix& matrix,
                                       device::Device& device, const std::string& node);

  std::vector<Kept> kept_;
  std::vector<device::TensorMap> descriptors_;
};

}  // namespace tenon::kernels
