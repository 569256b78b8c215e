#include "kernels/reference/tensor.h"

#include "base/checked.h"
#include "base/error.h"

namespace tenon::kernels::reference {
namespace {

// Small floats hold codes already; their infinities stay what they are.
constexpr EncodeRule kKeep{false, RoundMode::kNearestEven};

}  // namespace

int64_t element_count(const std::vector<int64_t>& dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count = checked_mul(count, dim);
  return count;
}

int64_t wrap_integer(DType dtype, int64_t value) {
  const int bits = dtype == DType::kBool ? 8 : bit_width(dtype);
  if (bits == 64) return value;
  const int shift = 64 - bits;
  const auto high = static_cast<uint64_t>(value) << shift;
  return is_signed(dtype) ? static_cast<int64_t>(high) >> shift
                          : static_cast<int64_t>(high >> shift);
}

ReferenceTensor ReferenceTensor::zeros(DType dtype, std::vector<int64_t> dims) {
  ReferenceTensor tensor;
  tensor.dtype = dtype;
  tensor.dims = std::move(dims);
  const auto count = static_cast<size_t>(element_count(tensor.dims));
  if (tensor.is_real()) {
    tensor.reals.resize(count);
  } else if (is_integer(dtype) || dtype == DType::kBool) {
    tensor.integers.resize(count);
  } else {
    throw InternalError("the reference has no tensors of type " + std::string(name(dtype)));
  }
  return tensor;
}

ReferenceTensor ReferenceTensor::of(DType dtype, std::vector<int64_t> dims,
                                    const std::vector<double>& values) {
  ReferenceTensor tensor = zeros(dtype, std::move(dims));
  if (static_cast<int64_t>(values.size()) != tensor.elements()) {
    throw InternalError("the number of values does not fit the shape");
  }
  for (size_t i = 0; i < values.size(); ++i) {
    tensor.set(static_cast<int64_t>(i), decode(dtype, encode(dtype, values[i])));
  }
  return tensor;
}

ReferenceTensor ReferenceTensor::from_bytes(DType dtype, std::vector<int64_t> dims,
                                            const void* data) {
  ReferenceTensor tensor = zeros(dtype, std::move(dims));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    if (tensor.is_real()) {
      tensor.reals[static_cast<size_t>(i)] = load_element(dtype, data, i);
    } else {
      tensor.integers[static_cast<size_t>(i)] = load_integer(dtype, data, i);
    }
  }
  return tensor;
}

ReferenceTensor ReferenceTensor::from(const ir::Tensor& tensor) {
  return from_bytes(tensor.dtype, tensor.dims, tensor.data);
}

int64_t ReferenceTensor::elements() const {
  return static_cast<int64_t>(is_real() ? reals.size() : integers.size());
}

double ReferenceTensor::number(int64_t index) const {
  const auto i = static_cast<size_t>(index);
  if (is_real()) return reals.at(i);
  if (dtype == DType::kU64) return static_cast<double>(static_cast<uint64_t>(integers.at(i)));
  return static_cast<double>(integers.at(i));
}

void ReferenceTensor::set(int64_t index, double value) {
  if (is_real()) {
    reals.at(static_cast<size_t>(index)) = value;
  } else {
    set_integer(index, static_cast<int64_t>(encode(dtype, value)));
  }
}

void ReferenceTensor::set_integer(int64_t index, int64_t value) {
  integers.at(static_cast<size_t>(index)) = wrap_integer(dtype, value);
}

void ReferenceTensor::copy_element(int64_t index, const ReferenceTensor& from, int64_t from_index) {
  if (is_real()) {
    reals.at(static_cast<size_t>(index)) = from.reals.at(static_cast<size_t>(from_index));
  } else {
    integers.at(static_cast<size_t>(index)) = from.integers.at(static_cast<size_t>(from_index));
  }
}

std::vector<std::byte> ReferenceTensor::bytes() const {
  std::vector<std::byte> packed(storage_bytes(dtype, elements()));
  for (int64_t i = 0; i < elements(); ++i) {
    const uint64_t code = is_real() ? encode(dtype, reals[static_cast<size_t>(i)], kKeep)
                                    : static_cast<uint64_t>(integers[static_cast<size_t>(i)]);
    store_code(dtype, packed.data(), i, code);
  }
  return packed;
}

ReferenceTensor ReferenceTensor::rounded() const {
  ReferenceTensor tensor = *this;
  for (double& real : tensor.reals) real = decode(dtype, encode(dtype, real, kKeep));
  return tensor;
}

}  // namespace tenon::kernels::reference
