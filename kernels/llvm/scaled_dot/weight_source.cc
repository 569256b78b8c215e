#include "kernels/llvm/scaled_dot/weight_source.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/convert.h"

namespace tenon::kernels {
namespace {

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A loop of a length that the compiler knows, without a way out, runs in vectors.
template <typename Bits, typename Wanted>
bool contains(const ir::Tensor& tensor, Wanted wanted) {
  constexpr int64_t kPiece = 1 << 12;
  const auto* next = reinterpret_cast<const Bits*>(tensor.data);
  const auto* end = next + tensor.elements();
  for (; end - next >= kPiece; next += kPiece) {
    Bits found = 0;
    for (int64_t i = 0; i < kPiece; ++i) found |= static_cast<Bits>(wanted(next[i]));
    if (found != 0) return true;
  }
  return std::any_of(next, end, wanted);
}

// All bits but the sign.
template <typename Bits>
bool contains_magnitude(const ir::Tensor& tensor, Bits magnitude) {
  const auto doubled = static_cast<Bits>(magnitude << 1);
  return contains<Bits>(tensor, [=](Bits bits) { return static_cast<Bits>(bits << 1) == doubled; });
}

template <typename Bits>
bool contains_at_least(const ir::Tensor& tensor, Bits magnitude) {
  const auto doubled = static_cast<Bits>(magnitude << 1);
  return contains<Bits>(tensor, [=](Bits bits) { return static_cast<Bits>(bits << 1) >= doubled; });
}

// Type that the scale's codes mean in the file.
DType stored_scale_type(const ir::Graph& graph, const ir::BlockScale& scale) {
  if (scale.scale == ir::kNoValue) return DType::kUndefined;
  return scale.scale_type != DType::kUndefined ? scale.scale_type : graph.value(scale.scale).dtype;
}

// What each of the 256 stored codes is worth, as DequantizeLinear would compute it.
std::vector<uint16_t> rounded_products(DType stored, const ir::BlockScale& scale) {
  std::vector<uint16_t> products(256);
  for (uint64_t code = 0; code < products.size(); ++code) {
    const auto product = static_cast<float>(decode(stored, code)) * scale.factor;
    products[code] = static_cast<uint16_t>(encode(scale.rounded, product));
  }
  return products;
}

std::vector<double> occurring_products(const ir::Tensor& codes, DType stored,
                                       const ir::BlockScale& scale) {
  std::array<bool, 256> occurs{};
  for (size_t i = 0; i < codes.bytes; ++i) occurs[std::to_integer<size_t>(codes.data[i])] = true;
  const std::vector<uint16_t> products = rounded_products(stored, scale);
  std::vector<double> occurring;
  for (size_t code = 0; code < products.size(); ++code) {
    if (occurs[code]) occurring.push_back(decode(scale.rounded, products[code]));
  }
  return occurring;
}

template <typename Wanted>
bool any_product(const ir::Tensor& codes, DType stored, const ir::BlockScale& scale,
                 std::string_view question, const Wanted& wanted) {
  const auto search = [&]() -> int64_t {
    return std::ranges::any_of(occurring_products(codes, stored, scale), wanted) ? 1 : 0;
  };
  return codes.facts->ask(
             fmt::format("{} {} {} {}", question, name(stored), scale.factor, name(scale.rounded)),
             search) != 0;
}

}  // namespace

DType packed_scale_type(const ir::Graph& graph, const ir::BlockScale& scale) {
  return scale.rounded != DType::kUndefined ? scale.rounded : stored_scale_type(graph, scale);
}

DType stored_zero_type(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const ir::ValueId zero = problem.dot.scale_b.zero_point;
  if (zero == ir::kNoValue) return DType::kUndefined;
  const DType type = graph.value(zero).dtype;
  return type == DType::kU8 && is_packed(problem.b_type) ? problem.b_type : type;
}

ScaleReader::ScaleReader(const ScaledDotProblem& problem, ir::TensorPtr tensor, DType type)
    : tensor_(std::move(tensor)), type_(type), problem_(problem) {
  blocks_ = problem.dot.scale_b.per_channel ? ceil_of(problem.k.value(), problem.block()) : 1;
  // Packed zero points pad each column's row of blocks to whole bytes.
  const bool padded = is_packed(type_) && tensor_->dtype == DType::kU8;
  row_ = padded ? ceil_of(blocks_ * bit_width(type_), 8) * 8 / bit_width(type_) : blocks_;
}

ScaleReader ScaleReader::scales(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const ir::BlockScale& scale = problem.dot.scale_b;
  const DType stored = stored_scale_type(graph, scale);
  ScaleReader reader(problem, graph.value(scale.scale).constant, stored);
  if (scale.rounded == DType::kUndefined) return reader;
  reader.rounded_ = scale.rounded;
  reader.products_ = rounded_products(stored, scale);
  return reader;
}

ScaleReader ScaleReader::zeros(const ir::Graph& graph, const ScaledDotProblem& problem) {
  return {problem, graph.value(problem.dot.scale_b.zero_point).constant,
          stored_zero_type(graph, problem)};
}

uint64_t ScaleReader::stored(int64_t block, int64_t column) const {
  const ElementStrides stride = strides();
  return load_code(type_, tensor_->data, column * stride.column + block * stride.k);
}

double ScaleReader::number_of(uint64_t stored) const {
  return products_.empty() ? decode(type_, stored) : decode(rounded_, code_of(stored));
}

const std::byte* ScaleReader::column(int64_t column) const {
  const bool side_by_side = problem_.dot.scale_b.per_channel && problem_.dot.b_k_last;
  if (!products_.empty() || !side_by_side || is_packed(type_)) return nullptr;
  return tensor_->data + column * row_ * bit_width(type_) / 8;
}

ElementStrides ScaleReader::strides() const {
  return problem_.dot.scale_b.per_channel ? element_strides(problem_, row_) : ElementStrides{};
}

namespace {

bool search_infinity(const ir::Tensor& tensor, DType type) {
  switch (type) {
    case DType::kF32:
      return contains_magnitude<uint32_t>(tensor, 0x7f800000);
    case DType::kF16:
      return contains_magnitude<uint16_t>(tensor, 0x7c00);
    case DType::kBF16:
      return contains_magnitude<uint16_t>(tensor, 0x7f80);
    case DType::kF8E5M2:
      return contains_magnitude<uint8_t>(tensor, 0x7c);
    default:
      return false;
  }
}

}  // namespace

bool contains_infinity(const ir::Tensor& tensor, DType type) {
  return tensor.facts->ask(fmt::format("infinity of {}", name(type)),
                           [&] { return search_infinity(tensor, type) ? 1 : 0; }) != 0;
}

bool has_infinite_scale(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const ir::BlockScale& scale = problem.dot.scale_b;
  if (scale.scale == ir::kNoValue) return false;
  const ir::Tensor& tensor = *graph.value(scale.scale).constant;
  const DType stored = stored_scale_type(graph, scale);
  if (scale.rounded == DType::kUndefined) return contains_infinity(tensor, stored);
  return any_product(tensor, stored, scale, "infinite", [](double x) { return std::isinf(x); });
}

bool has_huge_scale(const ir::Graph& graph, const ScaledDotProblem& problem) {
  constexpr int kExponent = 100;
  const ir::BlockScale& scale = problem.dot.scale_b;
  if (scale.scale == ir::kNoValue) return false;
  const ir::Tensor& tensor = *graph.value(scale.scale).constant;
  const DType stored = stored_scale_type(graph, scale);
  if (scale.rounded != DType::kUndefined) {
    return any_product(tensor, stored, scale, "huge",
                       [](double x) { return !(std::fabs(x) < std::ldexp(1, kExponent)); });
  }
  switch (stored) {
    case DType::kF32:
      return contains_at_least<uint32_t>(tensor, (kExponent + 127) << 23);
    case DType::kBF16:
      return contains_at_least<uint16_t>(tensor, (kExponent + 127) << 7);
    case DType::kF8E8M0:
      return contains<uint8_t>(tensor, [](uint8_t code) { return code >= kExponent + 127; });
    default:
      return false;  // 65504 at most
  }
}

int64_t stored_row(const ir::Graph& graph, const ScaledDotProblem& problem) {
  if (problem.dot.b_dims.empty()) return problem.k.value();
  const auto bits = static_cast<int64_t>(graph.value(problem.dot.b).constant->bytes) * 8;
  return bits / bit_width(problem.b_type) / problem.n.value();
}

ElementStrides element_strides(const ScaledDotProblem& problem, int64_t row) {
  return problem.dot.b_k_last ? ElementStrides{row, 1} : ElementStrides{1, problem.n.value()};
}

int64_t element_index(const ScaledDotProblem& problem, int64_t row, int64_t k, int64_t n) {
  const ElementStrides stride = element_strides(problem, row);
  return n * stride.column + k * stride.k;
}

PackedConstant zeroed(size_t bytes) {
  PackedConstant constant{aligned_bytes(bytes), bytes};
  std::memset(constant.data.get(), 0, bytes);
  return constant;
}

BufferArgument keep(Lowered& lowered, PackedConstant constant) {
  lowered.packed.push_back(std::move(constant));
  return BufferArgument::packed(static_cast<int32_t>(lowered.packed.size()) - 1);
}

void replace_weight(const ScaledDotProblem& problem, Lowered& lowered) {
  for (const ir::ValueId id :
       {problem.dot.b, problem.dot.scale_b.scale, problem.dot.scale_b.zero_point}) {
    if (id != ir::kNoValue) lowered.replaced_constants.push_back(id);
  }
}

Support has_constant_scales(const ir::Graph& graph, const ScaledDotProblem& problem) {
  for (const ir::ValueId id : {problem.dot.scale_b.scale, problem.dot.scale_b.zero_point}) {
    if (id != ir::kNoValue && !graph.value(id).is_constant()) {
      return Support::no("the weight's scales are not constant");
    }
  }
  return Support::yes();
}

}  // namespace tenon::kernels
