#include "codegen/moves.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "codegen/tile/op_info.h"

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

// A move of power-of-two tiles: element e of the result is element `source(e) ^ first` of operand,
// or part, number `choice(e)`.
struct MoveMap {
  LinearMap source, choice;
  uint64_t first = 0;
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

std::optional<MoveMap> map_of_move(const Kernel& kernel, const Operation& op) {
  if (!is_move(kernel, op) || !maps_bits(kernel, op)) return std::nullopt;
  auto choice_of = [](const Origin& origin) {
    return static_cast<uint64_t>(origin.operand | origin.part);  // never both
  };
  Origin first = origin_of(kernel, op, 0);
  std::vector<uint64_t> sources, choices;
  int64_t elements = kernel.types[op.results[0]].elements();
  for (int64_t bit = 1; bit < elements; bit *= 2) {
    Origin other = origin_of(kernel, op, bit);
    sources.push_back(static_cast<uint64_t>(other.element ^ first.element));
    choices.push_back(choice_of(other));
  }
  constexpr int kChoiceBits = 32;
  return MoveMap{{log2_of(kernel.types[op.operands[0]].elements()), std::move(sources)},
                 {kChoiceBits, std::move(choices)},
                 static_cast<uint64_t>(first.element)};
}

// The one bit that a column has, or -1 for none. Layouts by bits have no others.
int only_bit(uint64_t column) { return column == 0 ? -1 : log2_of(static_cast<int64_t>(column)); }

}  // namespace

bool is_move(const Kernel& kernel, const Operation& op) {
  if (op.op == Op::kBitcast) {
    return kernel.types[op.operands[0]].elements() != kernel.types[op.results[0]].elements();
  }
  return info(op.op).group == OpGroup::kShape && op.op != Op::kReduce;
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
  auto map = map_of_move(kernel, op);
  if (!map || !from.is_bits() || op.op == Op::kBroadcast) return std::nullopt;
  const std::vector<uint64_t>& sources = map->source.columns();
  auto to_result = [&](int bit) {
    auto found = std::ranges::find(sources, uint64_t{1} << bit);
    return found == sources.end() ? -1 : static_cast<int>(found - sources.begin());
  };
  std::vector<int> thread_bits, register_bits, choices;
  for (int bit : from.thread_bits) {
    if (bit >= 0 && to_result(bit) < 0) return std::nullopt;  // only some threads hold the slice
    thread_bits.push_back(bit < 0 ? -1 : to_result(bit));
  }
  for (int bit : from.register_bits) {
    if (to_result(bit) >= 0) register_bits.push_back(to_result(bit));
  }
  for (int i = 0; i < map->choice.inputs(); ++i) {
    if (map->choice.columns()[static_cast<size_t>(i)] != 0) choices.push_back(i);
  }
  // Parts of a word are neighbours; tiles side by side follow each other.
  auto place = op.op == Op::kBitcast ? register_bits.begin() : register_bits.end();
  register_bits.insert(place, choices.begin(), choices.end());
  return Layout::bits(kernel.types[op.results[0]].shape, from.threads, thread_bits, register_bits);
}

std::optional<Layout> moved_backward(const Kernel& kernel, const Operation& op, size_t operand,
                                     const Layout& to) {
  auto map = map_of_move(kernel, op);
  if (!map || !to.is_bits()) return std::nullopt;
  LinearMap to_element = *to.linear();
  auto threads = static_cast<int>(to.thread_bits.size());
  LinearMap source = map->source.after(to_element), choice = map->choice.after(to_element);
  std::vector<int> thread_bits, register_bits;
  uint64_t held = 0;
  for (int i = 0; i < source.inputs(); ++i) {
    uint64_t column = source.columns()[static_cast<size_t>(i)];
    held |= column;
    if (i >= threads) {
      if (column != 0) register_bits.push_back(only_bit(column));
    } else if (choice.columns()[static_cast<size_t>(i)] != 0) {
      return std::nullopt;  // threads would differ in the operand
    } else {
      thread_bits.push_back(only_bit(column));
    }
  }
  // What the result does not have must lie somewhere, too.
  for (int bit = 0; bit < map->source.outputs(); ++bit) {
    if (!(held >> bit & 1)) register_bits.push_back(bit);
  }
  return Layout::bits(kernel.types[op.operands[operand]].shape, to.threads, thread_bits,
                      register_bits);
}

std::optional<WarpReduction> reduced_in_warp(const Layout& from, int axis) {
  if (!from.is_bits()) return std::nullopt;
  int columns = log2_of(from.columns);
  // What becomes of a bit of the element's number: -1 where the reduction drops it.
  auto kept = [&](int bit) {
    if (axis == 1) return bit < columns ? -1 : bit - columns;
    return bit < columns ? bit : -1;
  };
  std::vector<int> thread_bits, register_bits, distances;
  for (int i = 0; i < static_cast<int>(from.thread_bits.size()); ++i) {
    int bit = from.thread_bits[static_cast<size_t>(i)];
    thread_bits.push_back(bit < 0 ? -1 : kept(bit));
    if (bit < 0 || thread_bits.back() >= 0) continue;
    if (1 << i >= kWarp) return std::nullopt;
    distances.push_back(1 << i);
  }
  for (int bit : from.register_bits) {
    if (kept(bit) >= 0) register_bits.push_back(kept(bit));
  }
  return WarpReduction{Layout::bits({axis == 1 ? from.rows : from.columns}, from.threads,
                                    std::move(thread_bits), std::move(register_bits)),
                       std::move(distances)};
}

namespace {

// All threads do the same with their registers if and only if a bit of the thread's number leads to
// the same element of the source before and after the move; the registers then follow.
std::optional<std::vector<RegisterOrigin>> linear_registers(const MoveMap& map, bool has_parts,
                                                            const LinearMap& to, int threads,
                                                            std::span<const LinearMap> from) {
  LinearMap source = map.source.after(to), choice = map.choice.after(to);
  if (choice.from_inputs(0, threads).rank() > 0) return std::nullopt;
  for (const LinearMap& operand : from) {
    if (source.from_inputs(0, threads) != operand.from_inputs(0, threads)) return std::nullopt;
  }
  struct Held {
    LinearMap registers;
    uint64_t first;
  };
  std::vector<Held> held;  // of each operand: which register has what one of the result needs
  int registers = to.inputs() - threads;
  for (const LinearMap& operand : from) {
    LinearMap own = operand.from_inputs(threads, operand.inputs() - threads);
    auto found = own.before(source.from_inputs(threads, registers));
    auto first = own.solve(map.first);
    if (!found || !first) return std::nullopt;
    held.push_back({*found, *first});
  }
  std::vector<RegisterOrigin> out;
  for (uint64_t reg = 0; reg < uint64_t{1} << registers; ++reg) {
    auto chosen = static_cast<int>(choice(reg << threads));
    int operand = has_parts ? 0 : chosen;
    const Held& there = held[static_cast<size_t>(operand)];
    auto at = static_cast<int>(there.registers(reg) ^ there.first);
    out.push_back({operand, at, has_parts ? chosen : 0});
  }
  return out;
}

// By looking at every thread; operands without a layout do not count.
std::optional<std::vector<RegisterOrigin>> registers_of_part(
    const Kernel& kernel, const Operation& op, const Layout& to,
    const std::function<const Layout*(int operand)>& layout_of) {
  std::vector<RegisterOrigin> out;
  for (int r = 0; r < to.registers(); ++r) {
    RegisterOrigin found{0, -1, 0};
    for (int thread = 0; thread < to.threads; ++thread) {
      int64_t element = to.element_of(thread, r);
      if (element < 0) continue;
      Origin wanted = origin_of(kernel, op, element);
      const Layout* from = layout_of(wanted.operand);
      if (!from) continue;
      if (found.reg < 0) {
        found = {wanted.operand, 0, wanted.part};
        while (found.reg < from->registers() &&
               from->element_of(thread, found.reg) != wanted.element) {
          ++found.reg;
        }
      }
      if (found.reg == from->registers() || found.operand != wanted.operand ||
          found.part != wanted.part || from->element_of(thread, found.reg) != wanted.element) {
        return std::nullopt;
      }
    }
    found.reg = std::max(found.reg, 0);
    out.push_back(found);
  }
  return out;
}

}  // namespace

std::optional<std::vector<RegisterOrigin>> enumerate_registers_of_move(
    const Kernel& kernel, const Operation& op, const std::vector<Layout>& layouts) {
  return registers_of_part(kernel, op, layouts[op.results[0]], [&](int operand) {
    return &layouts[op.operands[static_cast<size_t>(operand)]];
  });
}

std::optional<std::vector<RegisterOrigin>> registers_of_move(const Kernel& kernel,
                                                             const Operation& op,
                                                             const std::vector<Layout>& layouts) {
  auto map = map_of_move(kernel, op);
  auto to = layouts[op.results[0]].linear();
  std::vector<LinearMap> from;
  for (ValueId id : op.operands) {
    if (auto operand = layouts[id].linear()) from.push_back(*operand);
  }
  if (!map || !to || from.size() < op.operands.size()) {
    return enumerate_registers_of_move(kernel, op, layouts);
  }
  return linear_registers(*map, op.op == Op::kBitcast, *to, log2_of(layouts[op.results[0]].threads),
                          from);
}

namespace {

// A cheap way to say no. False: some bit of the thread's number leads to another element of the
// operand before the move than after it.
bool threads_agree(const Kernel& kernel, const Operation& op, const Layout& from,
                   const Layout& to) {
  if (!from.is_linear() || !to.is_linear() || !maps_bits(kernel, op)) return true;
  Origin first = origin_of(kernel, op, to.element_of(0, 0));
  for (int thread = 1; thread < to.threads; thread *= 2) {
    Origin other = origin_of(kernel, op, to.element_of(thread, 0));
    if (other.operand != first.operand || other.part != first.part) return false;
    int64_t before = from.element_of(thread, 0) ^ from.element_of(0, 0);
    if ((other.element ^ first.element) != before) return false;
  }
  return true;
}

}  // namespace

bool stays_in_thread(const Kernel& kernel, const Operation& op, size_t operand, const Layout& from,
                     const Layout& to) {
  if (!threads_agree(kernel, op, from, to)) return false;
  auto map = map_of_move(kernel, op);
  auto source = from.linear(), result = to.linear();
  if (!map || !source || !result) {
    auto held = registers_of_part(kernel, op, to, [&](int from_operand) -> const Layout* {
      return from_operand == static_cast<int>(operand) ? &from : nullptr;
    });
    return held.has_value();
  }
  int threads = log2_of(from.threads);
  LinearMap wanted = map->source.after(*result);
  if (map->choice.after(result->from_inputs(0, threads)).rank() > 0 ||
      wanted.from_inputs(0, threads) != source->from_inputs(0, threads)) {
    return false;
  }
  LinearMap held = source->from_inputs(threads, source->inputs() - threads);
  return held.solve(map->first) &&
         held.before(wanted.from_inputs(threads, wanted.inputs() - threads));
}

std::optional<Layout> turned_sums(const std::vector<int>& shape, int threads) {
  const std::vector<int> before{shape[1], shape[0]};
  auto sums = Layout::sums(before, threads);
  if (!sums) return std::nullopt;
  Kernel turn;
  turn.types = {Type::tile(DType::kF32, before), Type::tile(DType::kF32, shape)};
  Operation transpose{.op = Op::kTranspose, .operands = {0}, .results = {1}};
  return moved_forward(turn, transpose, *sums);
}

// A reshape to the same shape is no move at all.
std::optional<std::vector<int>> registers_in_place(const Layout& from, const Layout& to) {
  Kernel kernel;
  kernel.types.assign(2, Type::tile(DType::kU8, {from.rows, from.columns}));
  Operation same{.op = Op::kReshape, .operands = {0}, .results = {1}};
  if (!threads_agree(kernel, same, from, to)) return std::nullopt;
  auto origins = registers_of_move(kernel, same, {from, to});
  if (!origins) return std::nullopt;
  std::vector<int> out;
  for (const RegisterOrigin& origin : *origins) out.push_back(origin.reg);
  return out;
}

}  // namespace tenon::codegen
