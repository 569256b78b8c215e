#include "kernels/llvm/scaled_dot/byte_weight.h"

#include "base/convert.h"

namespace tenon::kernels {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kBytesAhead = 8 << 10;

double int8_byte_scale(DType element) {
  if (element == DType::kI4) return 1.0 / 16;
  return element == DType::kF4E2M1 ? 0.5 : 1.0;
}

std::vector<double> int8_table(const WeightLayout& layout) {
  std::vector<double> bytes(16);
  for (uint64_t code = 0; code < 16; ++code) {
    bytes[code] = (decode(layout.element, code) - static_cast<double>(layout.zero_offset)) /
                  int8_byte_scale(layout.element);
  }
  return bytes;
}

UnsignedBytes unsigned_bytes(DType element) {
  switch (element) {
    case DType::kF4E2M1:
      return {0.5, 12};
    case DType::kI4:
      return {1, 8};
    case DType::kI8:
      return {1, 128};
    default:  // u4
      return {1, 0};
  }
}

ByteWeight ByteWeight::of_unsigned(Builder& b, const WeightLayout& layout, ValueId bytes) {
  ByteWeight weight(layout, bytes);
  weight.is_unsigned = true;
  if (layout.element != DType::kF4E2M1) return weight;
  const auto [worth, excess] = unsigned_bytes(layout.element);
  std::vector<double> values(16);
  for (uint64_t code = 0; code < 16; ++code) {
    values[code] = decode(layout.element, code) / worth + static_cast<double>(excess);
  }
  weight.table = b.table(DType::kI8, values);
  return weight;
}

ByteWeight::ByteWeight(Builder& b, const WeightLayout& layout, ValueId bytes, bool zero_offset,
                       double factor)
    : layout(layout), bytes(bytes) {
  const bool by_bits = layout.element == DType::kI4 && layout.zero_offset == 0;
  const bool as_they_are = layout.element == DType::kU4 && !zero_offset;
  if (layout.bits == 4 && !by_bits && !as_they_are) {
    std::vector<double> values = int8_table(layout);
    for (double& value : values) value *= factor;
    table = b.table(DType::kI8, values);
  }
}

std::vector<ValueId> ByteWeight::load(Builder& b, ValueId panel, ValueId k) const {
  const int count = 4 * layout.columns;
  const auto number = [&](int64_t value) { return b.integer_constant(DType::kU8, value, {count}); };
  const ValueId line = b.div({b.add(b.mul(panel, b.index(layout.k)), k), b.index(k_per_load())});
  const ValueId first = b.mul(line, b.index(count)), ahead = b.add(first, b.index(kBytesAhead));
  for (int at = 0; at < count; at += 64) b.prefetch(bytes, b.add(ahead, b.index(at)));
  ValueId raw = b.load({bytes, first}, {count});
  std::vector<ValueId> groups;
  const bool in_high_half = layout.element == DType::kI4 && table == kNone && !is_unsigned;
  if (is_unsigned && (layout.element == DType::kI4 || layout.element == DType::kI8)) {
    // The sign's bit turned over adds half of the range.
    raw = b.binary(Fn::kXor, raw, number(layout.bits == 4 ? 0x88 : 0x80));
  }
  if (in_high_half) {
    groups = {b.binary(Fn::kShiftLeft, raw, number(4)), b.binary(Fn::kAnd, raw, number(0xf0))};
  } else if (layout.bits == 4) {
    groups = {b.binary(Fn::kAnd, raw, number(15)), b.binary(Fn::kShiftRight, raw, number(4))};
  } else {
    groups = {raw};
  }
  for (ValueId& group : groups) {
    if (table != kNone) group = b.lookup(table, group);
    group = b.bitcast(group, is_unsigned ? DType::kU8 : DType::kI8);
    group = b.reshape(group, {layout.columns, 4});
  }
  return groups;
}

}  // namespace tenon::kernels
