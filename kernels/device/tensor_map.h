// Matrices as TMA reads them: in boxes, with zeros outside. The driver encodes one into a parameter
// of 128 bytes.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/support.h"
#include "kernels/device/device.h"

namespace tenon::device {

struct MappedMatrix {
  Address base = 0;
  int element_bytes = 0;
  int64_t rows = 0, columns = 0, stride = 0;  // stride: elements from row to row
  int box_rows = 0, box_columns = 0;
  int groups = 0;         // boxes side by side that one copy takes; 0: one, anywhere
  bool swizzled = false;  // by the width of a box's row
  bool tf32 = false;      // f32 that is rounded as it is copied

  bool operator==(const MappedMatrix&) const = default;
};

// Drivers before CUDA 12 have no TMA descriptors.
Support supports_tma(const Driver& driver);

// Throws UserError where TMA cannot read such a matrix; `what` names it in the message.
TensorMap encode_tensor_map(Device& device, const MappedMatrix& matrix, std::string_view what);

}  // namespace tenon::device
