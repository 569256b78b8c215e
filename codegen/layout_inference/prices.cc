// What a choice of layouts costs: instructions of a thread, about, in eighths. A barrier holds up
// more than it takes to issue, and what goes through shared memory takes room there.
#include <algorithm>
#include <bit>

#include "codegen/layout_inference/constraints.h"
#include "codegen/moves.h"

namespace tenon::codegen {

namespace {

constexpr int64_t kTrifle = 1;  // of two ways that cost nothing, the straight one
constexpr int64_t kInstruction = 8, kAccess = 2 * kInstruction, kShuffle = 2 * kInstruction;
constexpr int64_t kExchange = 64 * kInstruction;  // two barriers
constexpr int kVectorBytes = 16, kStep = 16;

int bytes_of(DType dtype) { return (bit_width(dtype) + 7) / 8; }

// Neighbours of a row that one access takes.
int width_of(const Layout& layout, const Type& type) {
  int columns = type.shape.back(), width = 1;
  switch (layout.kind) {
    case Layout::Kind::kDealt:
      width = columns % layout.run == 0 ? layout.run : 1;
      break;
    case Layout::Kind::kMma:
    case Layout::Kind::kColumns:
      width = columns % 2 == 0 ? 2 : 1;
      break;
    case Layout::Kind::kBits:
      width = layout.neighbours();
      break;
    default:
      break;
  }
  return std::min(width, std::max(1, kVectorBytes / bytes_of(type.dtype)));
}

int64_t accesses(const Layout& layout, const Type& type) {
  return layout.registers() / width_of(layout, type);
}

// Through shared memory: written as `from`, read as `to`, one element at a time.
int64_t exchange(const Layout& from, const Type& type, const Layout& to) {
  int64_t room = type.elements() * bytes_of(type.dtype) / 4 / from.threads;
  return kExchange + kInstruction * (room + accesses(from, type) + to.registers());
}

int64_t relayout_price(const System& system, const Constraint& constraint, const Layout& from,
                       const Layout& to) {
  if (from == to || from.is_splat()) return 0;
  const Type& type = system.kernel.types[constraint.a];
  if (system.splats[constraint.a] || type.elements() == 1) return kTrifle;
  if (registers_in_place(from, to)) return kTrifle;
  return exchange(from, type, to);
}

int64_t reduce_price(const Operation& op, const Type& type, const Layout& from, const Layout& to) {
  int64_t registers = from.registers();
  if (from.is_mma()) {
    bool along_row = op.axis == 1;
    Layout sums = along_row ? from.rows_of() : from.columns_of();
    int64_t price = kInstruction * registers + kShuffle * sums.registers() * (along_row ? 2 : 3);
    bool whole = (along_row ? from.warps_n : from.warps_m) == 1;
    if (whole && sums == to) return price;
    return price + kExchange + kInstruction * (sums.registers() + to.registers());
  }
  if (from.kind == Layout::Kind::kDealt) {
    return kInstruction * registers + 5 * kShuffle * std::max<int64_t>(1, registers / from.run) +
           kExchange + kInstruction * to.registers();
  }
  auto in_warp = reduced_in_warp(from, op.axis);
  if (in_warp && in_warp->result == to) {
    auto shuffles = static_cast<int64_t>(in_warp->distances.size());
    return kInstruction * registers + kShuffle * to.registers() * shuffles;
  }
  int along = type.shape[static_cast<size_t>(op.axis)];
  return kExchange + kInstruction * (accesses(from, type) + int64_t{along} * to.registers());
}

// Operands of mma.sync that are no sums of another product come from shared memory, and there each
// warp reads all that its sums need.
int64_t operand_price(const System& system, const Constraint& constraint, const Layout& from,
                      const Layout& sums) {
  const Type& type = system.kernel.types[constraint.a];
  int64_t written = kInstruction * accesses(from, type);
  if (!is_tensor_core_dot(system.kernel, *constraint.op)) return written;
  bool left = constraint.operand == 1;
  ValueId whole = constraint.op->operands[constraint.operand];
  int depth = system.shape(whole)[left ? 1 : 0];
  bool in_registers = left && constraint.a == whole && from.is_mma() && from.warps_n == 1 &&
                      from.warps_m == sums.warps_m && depth % kStep == 0;
  if (in_registers) return 0;
  int64_t matrices = left ? sums.fragments_m() : (sums.fragments_n() + 1) / 2;
  return written + kInstruction * matrices * ((depth + kStep - 1) / kStep);
}

int64_t transfer_price(const System& system, const Constraint& constraint, const Layout& from,
                       const Layout& to) {
  const Operation& op = *constraint.op;
  const Type& type = system.kernel.types[constraint.a];
  if (op.op == Op::kReduce) return reduce_price(op, type, from, to);
  if (!is_move(system.kernel, op)) return operand_price(system, constraint, from, to);
  if (type.elements() == 1 || system.splats[constraint.a]) return kTrifle;
  if (stays_in_thread(system.kernel, op, constraint.operand, from, to)) return 0;
  return exchange(from, type, to);
}

// A turned tile of sums passes shared memory in small pieces and leaves as whole vectors.
bool is_turned(const System& system, ValueId id, const Layout& layout) {
  const std::vector<int>& shape = system.shape(id);
  int bits = bit_width(system.kernel.types[id].dtype);
  return layout.is_bits() && shape.size() == 2 && (bits == 16 || bits == 32) &&
         layout == turned_sums(shape, system.threads);
}

int64_t work_price(const System& system, const Constraint& constraint, const Layout& layout) {
  const Operation& op = *constraint.op;
  const Type& type = system.kernel.types[constraint.a];
  int64_t registers = layout.registers();
  switch (op.op) {
    case Op::kConstant:
      return static_cast<int64_t>(op.integers.size()) * registers * kInstruction;
    case Op::kStore:
      if (is_turned(system, constraint.a, layout)) {
        return kInstruction * registers + kAccess * registers * bytes_of(type.dtype) / kVectorBytes;
      }
      [[fallthrough]];
    case Op::kLoad:
    case Op::kRead:
      return kAccess * accesses(layout, type);
    case Op::kGather:
    case Op::kScatter:
    case Op::kLookup:
      return kAccess * registers;
    case Op::kReduce:
      return kInstruction * registers;
    case Op::kDot:
    case Op::kDotI8: {
      if (is_tensor_core_dot(system.kernel, op)) return 0;
      int64_t depth = system.shape(op.operands[1])[1];
      return depth * kInstruction * (registers + accesses(layout, type));
    }
    default:
      return system.splats[constraint.a] ? 0 : kInstruction * registers;
  }
}

}  // namespace

int64_t price(const System& system, const Constraint& constraint, const Layout& a,
              const Layout* b) {
  switch (constraint.kind) {
    case Constraint::Kind::kRelayout:
      return constraint.times * relayout_price(system, constraint, a, *b);
    case Constraint::Kind::kTransfer:
      return constraint.times * transfer_price(system, constraint, a, *b);
    case Constraint::Kind::kWork:
      return constraint.times * work_price(system, constraint, a);
    default:
      return 0;
  }
}

}  // namespace tenon::codegen
