#include "kernels/llvm/attention/flash_decode_codes.h"

#include <bit>

#include "base/error.h"
#include "kernels/llvm/attention/cache_codes.h"

namespace tenon::kernels {

using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

namespace {

// Integers as 16-bit numbers: bits of a code under a power of two whose last bit counts 1, less
// that power, and less what a code's offset or sign makes of it.
struct CodeRule {
  DType codes, operand;
  uint32_t inverted;  // bits of a word that are turned first
  uint32_t mask, magic;
  double less;         // a constant, or where it is 0 ...
  uint32_t less_mask;  // ... other bits of the code under the same power
};
constexpr CodeRule kRules[] = {
    {DType::kI8, DType::kF16, 0x80808080, 0x00ff00ff, 0x64006400, 1024 + 128, 0},
    {DType::kI4, DType::kF16, 0, 0x000f000f, 0x64006400, 1024 + 8, 0},
    {DType::kI8, DType::kBF16, 0, 0x007f007f, 0x43004300, 0, 0x00800080},
    {DType::kI4, DType::kBF16, 0, 0x000f000f, 0x43004300, 128 + 8, 0},
};

const CodeRule& rule_of(DType codes, DType operand) {
  for (const CodeRule& rule : kRules) {
    if (rule.codes == codes && rule.operand == operand) return rule;
  }
  throw InternalError("no rule for codes of " + std::string(name(codes)));
}

int log2_of(int n) { return std::countr_zero(static_cast<unsigned>(n)); }

}  // namespace

FlashDecodeCodes::FlashDecodeCodes(LaunchWriter& writer, const ir::Graph& graph,
                                   const AttentionProblem& problem, const FlashDecodeConfig& config)
    : writer_(writer),
      b_(writer.builder),
      graph_(graph),
      problem_(problem),
      config_(config),
      type_(problem.attention.cache_type),
      operand_(graph.value(problem.attention.q).dtype),
      key_(scale_of("k_scale", problem.attention.k_scale)),
      value_(scale_of("v_scale", problem.attention.v_scale)) {}

FlashDecodeCodes::Scale FlashDecodeCodes::scale_of(const char* name, ir::ValueId id) {
  return {writer_.buffer(name, DType::kF32, BufferArgument::value(id)),
          element_count(*graph_.value(id).shape).is(1)};
}

void FlashDecodeCodes::locate(const AttentionTask& task) {
  first_scale_ = b_.mul(task.kv_head, b_.index(problem_.depth));
  find_factor();
}

// Queries times scales must stay inside of what 16 bits hold: the power of two below the largest
// scale is left out of them.
void FlashDecodeCodes::find_factor() {
  if (key_.is_one) {
    factor_ = b_.load({key_.buffer, b_.index(0)}, {});
    return;
  }
  constexpr double kLeast = 0x1p-100;
  const std::vector<int> shape = {config_.key_boxes * config_.columns};
  const Tile all =
      b_.load({key_.buffer, first_scale_, {b_.index(1)}, {b_.index(problem_.depth)}}, shape);
  const Tile largest =
      b_.max({b_.reduce(Fn::kMax, b_.unary(Fn::kAbs, all), 0), b_.constant(DType::kF32, kLeast)});
  const Tile exponent = b_.binary(
      Fn::kAnd, {b_.bitcast(largest, DType::kI32), b_.integer_constant(DType::kI32, 0x7f800000)});
  factor_ = b_.bitcast(exponent, DType::kF32);
  reciprocal_ = b_.div(b_.constant(DType::kF32, 1), factor_);
}

Tile FlashDecodeCodes::keys(Tile words, int part) {
  const int bits = bit_width(type_);
  const auto at_part = [&](Tile from) {
    return part == 0 ? from : b_.binary(Fn::kShiftRight, from, word(part * bits, from));
  };
  if (is_floating(type_)) {
    const Tile halves = b_.bitcast(at_part(words), DType::kU16);
    const Tile half =
        b_.cast(b_.unary(Fn::kDequantizeF8E4M3FN, b_.cast(halves, DType::kU8)), DType::kF16);
    return operand_ == DType::kF16 ? half : b_.cast(b_.cast(half, DType::kF32), operand_);
  }
  const CodeRule& rule = rule_of(type_, operand_);
  if (rule.inverted != 0) words = b_.binary(Fn::kXor, words, word(rule.inverted, words));
  const auto under_magic = [&](uint32_t mask) {
    const Tile kept = b_.binary(Fn::kAnd, {at_part(words), word(mask, words)});
    return b_.bitcast(b_.binary(Fn::kOr, kept, word(rule.magic, words)), operand_);
  };
  const Tile counted = under_magic(rule.mask);
  const Tile less = rule.less != 0 ? b_.constant(operand_, rule.less, b_.type(counted).shape)
                                   : under_magic(rule.less_mask);
  return b_.sub(counted, less);
}

// Two numbers of a word are of one key: they go to columns that the same thread has.
Tile FlashDecodeCodes::values(Tile words, int part) {
  const Tile numbers = keys(words, part);
  const std::vector<int> shape = b_.type(numbers).shape;
  const int of_words = log2_of(config_.words()), all = log2_of(shape[0] * shape[1]);
  std::vector<int64_t> bits;
  for (int bit = 0; bit < of_words; ++bit) bits.push_back(bit + 1);
  bits.push_back(0);
  for (int bit = of_words + 1; bit < all; ++bit) bits.push_back(bit);
  return b_.permute(numbers, bits, shape);
}

Tile FlashDecodeCodes::scaled_queries(Tile queries, int64_t first) {
  if (key_.is_one) return queries;
  const std::vector<int> shape = b_.type(queries).shape;
  const Tile scale = b_.mul({key_scales(shape, first), b_.splat(reciprocal_, shape)});
  return quantize_tile(b_, b_.mul(dequantize_tile(b_, queries, operand_), scale), operand_);
}

Tile FlashDecodeCodes::column(std::vector<int> shape) {
  const auto bits = [&](Tile x, int first, int count) {
    const Tile moved = b_.binary(Fn::kShiftRight, x, integer(first, shape));
    return b_.binary(Fn::kAnd, moved, integer((1 << count) - 1, shape));
  };
  const auto times = [&](Tile x, int64_t factor) { return b_.mul(x, integer(factor, shape)); };
  const Tile at = b_.iota(DType::kI32, shape, 1);
  const int of_words = log2_of(config_.words()), of_codes = log2_of(config_.codes);
  const Tile in_word = bits(at, of_words, 1), part = bits(at, of_words + 1, of_codes);
  const Tile box = bits(at, of_words + 1 + of_codes, 8);
  const Tile of_product = b_.add(times(bits(at, 0, of_words), 2), in_word);
  return b_.add({times(box, int64_t{config_.columns} * config_.codes),
                 b_.add(times(of_product, config_.codes), part)});
}

void FlashDecodeCodes::store_result(ValueId y, ValueId offset, Tile accumulators, DType type) {
  const std::vector<int> shape = b_.type(accumulators).shape;
  const auto splat = [&](const Dim& value) {
    return b_.splat(b_.from_index(writer_.index(value), DType::kI32), shape);
  };
  const Tile where = column(shape);
  const Tile row = b_.mul({b_.iota(DType::kI32, shape, 0), splat(problem_.y.head)});
  const Tile at = b_.add(row, b_.mul(where, splat(problem_.y.column)));
  const Tile inside = b_.compare(Fn::kLess, where, splat(problem_.value_depth));
  const Tile scaled = b_.mul(accumulators, value_scales(where));
  b_.scatter(y, offset, at, quantize_tile(b_, scaled, type), inside);
}

Tile FlashDecodeCodes::value_scales(Tile column) {
  const std::vector<int> shape = b_.type(column).shape;
  if (value_.is_one) return b_.splat(b_.load({value_.buffer, b_.index(0)}, {}), shape);
  const Tile inside = b_.compare(Fn::kLess, column, integer(problem_.depth, shape));
  return b_.gather(value_.buffer, first_scale_, column, inside, 1);
}

Tile FlashDecodeCodes::scales(const Scale& scale, std::vector<int> shape, int64_t first) {
  if (scale.is_one) return b_.splat(b_.load({scale.buffer, b_.index(0)}, {}), shape);
  return b_.load({scale.buffer,
                  b_.add(first_scale_, b_.index(first)),
                  {b_.index(0), b_.index(1)},
                  {kNone, b_.index(problem_.depth - first)}},
                 shape, 1);
}

Tile FlashDecodeCodes::key_scales(std::vector<int> shape, int64_t first) {
  return scales(key_, std::move(shape), first);
}

Tile FlashDecodeCodes::key_codes(Tile numbers, int64_t first) {
  return to_codes(b_, b_.div(numbers, key_scales(b_.type(numbers).shape, first)), type_);
}
Tile FlashDecodeCodes::value_codes(Tile numbers, int64_t first) {
  return to_codes(b_, b_.div(numbers, scales(value_, b_.type(numbers).shape, first)), type_);
}
Tile FlashDecodeCodes::as_numbers(Tile codes) { return numbers_of(b_, codes, type_); }

Tile FlashDecodeCodes::as_stored(Tile codes) {
  if (type_ != DType::kI4) return codes;
  const int bytes = b_.type(codes).shape[1] / 2;
  const Tile pairs = b_.reshape(codes, {bytes, 2});
  const auto half = [&](int which) { return b_.slice(pairs, {0, which}, {bytes, 1}); };
  const Tile low = half(0), high = half(1);
  return b_.reshape(packed_codes(b_, low, high), {1, bytes});
}

Tile FlashDecodeCodes::rounded_values(Tile numbers, Tile column) {
  return as_numbers(to_codes(b_, b_.div(numbers, value_scales(column)), type_));
}

}  // namespace tenon::kernels
