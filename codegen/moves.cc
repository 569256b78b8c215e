#include "codegen/moves.h"

#include <algorithm>
#include <bit>

namespace tenon::codegen {

namespace {

bool is_power_of_two(int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); }
int log2_of(int64_t n) { return std::countr_zero(static_cast<uint64_t>(n)); }

struct Box {
  int64_t rows, columns;
  explicit Box(const Type& type)
      : rows(type.shape.size() == 2 ? type.shape[0] : 1),
        columns(type.shape.empty() ? 1 : type.shape.back()) {}
};

int64_t permuted(const std::vector<int64_t>& bits, int64_t element) {
  int64_t out = 0;
  for (size_t i = 0; i < bits.size(); ++i) out |= (element >> i & 1) << bits[i];
  return out;
}

Origin in_concat(const Kernel& kernel, const Operation& op, int64_t row, int64_t column) {
  bool along_rows = op.axis == 0 && kernel.types[op.results[0]].shape.size() == 2;
  int64_t& position = along_rows ? row : column;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    Box part(kernel.types[op.operands[i]]);
    int64_t size = along_rows ? part.rows : part.columns;
    if (position < size) return {static_cast<int>(i), row * part.columns + column, 0};
    position -= size;
  }
  return {};
}

// What each bit of a result's element number is in the source.
struct BitMap {
  static constexpr int kRepeated = -1;  // broadcast: no bit at all
  static constexpr int kChoice = -2;    // which operand, or which part of an element
  std::vector<int> source_of;
  std::vector<int> dropped;  // bits of the source that the result does not have
};

// Slices that begin where a power of two does, and so on: the others are no maps of bits.
bool maps_bits(const Kernel& kernel, const Operation& op) {
  const Type& result = kernel.types[op.results[0]];
  for (ValueId id : op.operands) {
    for (int size : kernel.types[id].shape) {
      if (!is_power_of_two(size)) return false;
    }
    if (kernel.types[id] != kernel.types[op.operands[0]]) return false;
  }
  for (size_t d = 0; d < result.shape.size(); ++d) {
    if (!is_power_of_two(result.shape[d])) return false;
    if (op.op == Op::kSlice && op.integers[d] % result.shape[d] != 0) return false;
  }
  return true;
}

std::optional<BitMap> bit_map(const Kernel& kernel, const Operation& op) {
  if (!is_move(kernel, op) || !maps_bits(kernel, op)) return std::nullopt;
  BitMap out;
  int bits = log2_of(kernel.types[op.results[0]].elements());
  int source_bits = log2_of(kernel.types[op.operands[0]].elements());
  std::vector<bool> used(static_cast<size_t>(source_bits));
  Origin first = origin_of(kernel, op, 0);
  for (int i = 0; i < bits; ++i) {
    Origin other = origin_of(kernel, op, int64_t{1} << i);
    bool chooses = other.operand != first.operand || other.part != first.part;
    if (other.element == first.element) {
      out.source_of.push_back(chooses ? BitMap::kChoice : BitMap::kRepeated);
      continue;
    }
    if (chooses) return std::nullopt;
    out.source_of.push_back(log2_of(other.element ^ first.element));
    used[static_cast<size_t>(out.source_of.back())] = true;
  }
  for (int i = 0; i < source_bits; ++i) {
    if (!used[static_cast<size_t>(i)]) out.dropped.push_back(i);
  }
  return out;
}

}  // namespace

bool is_move(const Kernel& kernel, const Operation& op) {
  switch (op.op) {
    case Op::kBroadcast:
    case Op::kReshape:
    case Op::kTranspose:
    case Op::kSlice:
    case Op::kConcat:
    case Op::kPermute:
      return true;
    case Op::kBitcast:
      return kernel.types[op.operands[0]].elements() != kernel.types[op.results[0]].elements();
    default:
      return false;
  }
}

Origin origin_of(const Kernel& kernel, const Operation& op, int64_t element) {
  const Type &source = kernel.types[op.operands[0]], &result = kernel.types[op.results[0]];
  Box from(source), to(result);
  int64_t row = element / to.columns, column = element % to.columns;
  switch (op.op) {
    case Op::kBroadcast:
      return {0, (from.rows == 1 ? 0 : row) * from.columns + (from.columns == 1 ? 0 : column), 0};
    case Op::kTranspose:
      return {0, column * from.columns + row, 0};
    case Op::kSlice: {
      int64_t first_row = result.shape.size() == 2 ? op.integers[0] : 0;
      return {0, (row + first_row) * from.columns + column + op.integers.back(), 0};
    }
    case Op::kConcat:
      return in_concat(kernel, op, row, column);
    case Op::kPermute:
      return {0, permuted(op.integers, element), 0};
    case Op::kBitcast: {
      int64_t parts = result.elements() / source.elements();
      return {0, element / parts, static_cast<int>(element % parts)};
    }
    default:  // kReshape
      return {0, element, 0};
  }
}

std::optional<Layout> moved_forward(const Kernel& kernel, const Operation& op, const Layout& from) {
  auto map = bit_map(kernel, op);
  if (!map || !from.is_bits() || op.op == Op::kBroadcast) return std::nullopt;
  auto to_result = [&](int bit) {
    auto found = std::ranges::find(map->source_of, bit);
    return found == map->source_of.end() ? -1 : static_cast<int>(found - map->source_of.begin());
  };
  std::vector<int> thread_bits, register_bits, choices;
  for (int bit : from.thread_bits) {
    if (bit >= 0 && to_result(bit) < 0) return std::nullopt;  // only some threads hold the slice
    thread_bits.push_back(bit < 0 ? -1 : to_result(bit));
  }
  for (int bit : from.register_bits) {
    if (to_result(bit) >= 0) register_bits.push_back(to_result(bit));
  }
  for (size_t i = 0; i < map->source_of.size(); ++i) {
    if (map->source_of[i] == BitMap::kChoice) choices.push_back(static_cast<int>(i));
  }
  // Parts of a word are neighbours; tiles side by side follow each other.
  auto place = op.op == Op::kBitcast ? register_bits.begin() : register_bits.end();
  register_bits.insert(place, choices.begin(), choices.end());
  return Layout::bits(kernel.types[op.results[0]].shape, from.threads, thread_bits, register_bits);
}

std::optional<Layout> moved_backward(const Kernel& kernel, const Operation& op, size_t operand,
                                     const Layout& to) {
  auto map = bit_map(kernel, op);
  if (!map || !to.is_bits()) return std::nullopt;
  std::vector<int> thread_bits, register_bits;
  for (int bit : to.thread_bits) {
    int source = bit < 0 ? BitMap::kRepeated : map->source_of[static_cast<size_t>(bit)];
    if (source == BitMap::kChoice) return std::nullopt;  // threads would differ in the operand
    thread_bits.push_back(source);
  }
  for (int bit : to.register_bits) {
    int source = map->source_of[static_cast<size_t>(bit)];
    if (source >= 0) register_bits.push_back(source);
  }
  register_bits.insert(register_bits.end(), map->dropped.begin(), map->dropped.end());
  return Layout::bits(kernel.types[op.operands[operand]].shape, to.threads, thread_bits,
                      register_bits);
}

std::optional<std::vector<RegisterOrigin>> registers_of_move(const Kernel& kernel,
                                                             const Operation& op,
                                                             const std::vector<Layout>& layouts) {
  const Layout& to = layouts[op.results[0]];
  auto source_of = [&](const Origin& origin) -> const Layout& {
    return layouts[op.operands[static_cast<size_t>(origin.operand)]];
  };
  std::vector<RegisterOrigin> out;
  for (int r = 0; r < to.registers(); ++r) {
    RegisterOrigin found{0, -1, 0};
    for (int thread = 0; thread < to.threads; ++thread) {
      int64_t element = to.element_of(thread, r);
      if (element < 0) continue;
      Origin wanted = origin_of(kernel, op, element);
      const Layout& from = source_of(wanted);
      if (found.reg < 0) {
        found = {wanted.operand, 0, wanted.part};
        while (found.reg < from.registers() &&
               from.element_of(thread, found.reg) != wanted.element) {
          ++found.reg;
        }
      }
      if (found.reg == from.registers() || found.operand != wanted.operand ||
          found.part != wanted.part || from.element_of(thread, found.reg) != wanted.element) {
        return std::nullopt;
      }
    }
    found.reg = std::max(found.reg, 0);
    out.push_back(found);
  }
  return out;
}

}  // namespace tenon::codegen
