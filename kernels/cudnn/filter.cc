#include "kernels/cudnn/filter.h"

#include <cstring>

namespace tenon::cudnn {
namespace {

// One of the k, in elements of a type of their width.
struct Extents {
  int64_t channels = 1, taps = 1;
  size_t element = 1, filter = 1;  // bytes
};

Extents extents_of(const ir::Tensor& filter) {
  Extents made;
  made.channels = filter.dims.at(1);
  for (size_t i = 2; i < filter.dims.size(); ++i) made.taps *= filter.dims[i];
  made.element = static_cast<size_t>(storage_bytes(filter.dtype, 1));
  made.filter = static_cast<size_t>(made.channels * made.taps) * made.element;
  return made;
}

template <typename Element>
void turn(const std::byte* from, std::byte* to, const Extents& extents) {
  const auto size = static_cast<int64_t>(sizeof(Element));
  for (int64_t tap = 0; tap < extents.taps; ++tap) {
    for (int64_t channel = 0; channel < extents.channels; ++channel) {
      std::memcpy(to + (tap * extents.channels + channel) * size,
                  from + (channel * extents.taps + tap) * size, sizeof(Element));
    }
  }
}

}  // namespace

bool differs_with_channels_last(const ir::Tensor& filter) {
  const Extents extents = extents_of(filter);
  return extents.channels > 1 && extents.taps > 1;
}

kernels::PackedConstant filter_with_channels_last(const ir::TensorPtr& filter) {
  const Extents extents = extents_of(*filter);
  kernels::PackedConstant packed;
  packed.bytes = filter->bytes;
  packed.unit = extents.filter;
  packed.pack = [filter, extents](int64_t first_byte, std::span<std::byte> out) {
    for (size_t done = 0; done < out.size(); done += extents.filter) {
      const std::byte* from = filter->data + static_cast<size_t>(first_byte) + done;
      if (extents.element == 2) {
        turn<uint16_t>(from, out.data() + done, extents);
      } else {
        turn<uint32_t>(from, out.data() + done, extents);
      }
    }
  };
  return packed;
}

}  // namespace tenon::cudnn
