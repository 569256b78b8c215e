#include "kernels/reference/kv_cache.h"

#include <algorithm>

#include "base/convert.h"
#include "kernels/reference/conversions.h"

namespace tenon::kernels::reference {
namespace {

// Two nibbles in a byte.
ReferenceTensor packed(const ReferenceTensor& nibbles) {
  Dims dims = nibbles.dims;
  dims[3] /= 2;
  ReferenceTensor bytes = ReferenceTensor::zeros(DType::kU8, dims);
  for (int64_t i = 0; i < bytes.elements(); ++i) {
    const auto at = static_cast<size_t>(2 * i);
    bytes.set_integer(i, nibbles.integers.at(at) | nibbles.integers.at(at + 1) << 4);
  }
  return bytes;
}

}  // namespace

ReferenceTensor append_rows(const ReferenceTensor* past, const ReferenceTensor& fresh,
                            const std::vector<int64_t>& past_rows, int64_t rows) {
  const Dims dims{fresh.dims[0], fresh.dims[1], rows, fresh.dims[3]};
  ReferenceTensor y = ReferenceTensor::zeros(fresh.dtype, dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    const int64_t kept = past_rows[static_cast<size_t>(index[0])];
    Index from = index;
    if (index[2] < kept) {
      y.copy_element(flat, *past, flat_index(past->dims, from));
    } else if (index[2] < kept + fresh.dims[2]) {
      from[2] -= kept;
      y.copy_element(flat, fresh, flat_index(fresh.dims, from));
    }
  });
  return y;
}

ReferenceTensor last_rows(const ReferenceTensor& cache, const std::vector<int64_t>& lengths,
                          int64_t rows) {
  return remap(cache, {cache.dims[0], cache.dims[1], rows, cache.dims[3]}, [&](const Index& index) {
    const int64_t lost = std::max<int64_t>(0, lengths[static_cast<size_t>(index[0])] - rows);
    return flat_index(cache.dims, {index[0], index[1], index[2] + lost, index[3]});
  });
}

double Codes::scale_of(int64_t h, int64_t d, int64_t width) const {
  return scale->number(scale->elements() == 1 ? 0 : h * width + d);
}

ReferenceTensor Codes::quantized(const ReferenceTensor& x) const {
  ReferenceTensor codes = ReferenceTensor::zeros(are_packed() ? DType::kU4 : type, x.dims);
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const double held = as_held(x.dtype, x.number(flat));
    const double scaled = as_held(DType::kF32, held / scale_of(index[1], index[3], x.dims[3]));
    const uint64_t code = quantize(codes.dtype, scaled, are_packed() ? 8 : 0);
    codes.set(flat, decode(codes.dtype, code));
  });
  return are_packed() ? packed(codes) : codes;
}

ReferenceTensor Codes::numbers(const ReferenceTensor& stored, DType dtype) const {
  Dims dims = stored.dims;
  if (are_packed()) dims[3] *= 2;
  ReferenceTensor x = ReferenceTensor::zeros(dtype, dims);
  for_each_index(dims, [&](const Index& index, int64_t flat) {
    double code = 0;
    if (are_packed()) {
      const int64_t byte = stored.integers.at(static_cast<size_t>(flat / 2));
      code = static_cast<double>(flat % 2 == 0 ? byte & 15 : byte >> 4) - 8;
    } else {
      code = stored.number(flat);
    }
    x.set(flat, code * scale_of(index[1], index[3], dims[3]));
  });
  return x;
}

Cache append_to_cache(const ReferenceTensor* past, const ReferenceTensor& fresh, const Codes& codes,
                      const std::vector<int64_t>& past_rows, int64_t rows) {
  if (codes.type == DType::kUndefined) {
    const ReferenceTensor all = append_rows(past, fresh, past_rows, rows);
    return {all, all};
  }
  const ReferenceTensor all = append_rows(past, codes.quantized(fresh), past_rows, rows);
  return {all, codes.numbers(all, fresh.dtype)};
}

}  // namespace tenon::kernels::reference
