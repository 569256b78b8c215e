// Which tile lies how.
#include <algorithm>
#include <optional>

#include "codegen/layout_inference/solve.h"
#include "codegen/layouts.h"

namespace tenon::codegen {

bool is_tensor_core_dot(const Kernel& kernel, const Operation& op) {
  if (op.op != Op::kDot) return false;
  DType a = kernel.types[op.operands[1]].dtype, b = kernel.types[op.operands[2]].dtype;
  return a == b && (a == DType::kF16 || a == DType::kBF16 || op.tf32) &&
         kernel.types[op.operands[0]].dtype == DType::kF32;
}

namespace {

void collect(const Region& region, std::vector<const Operation*>& out) {
  for (const Operation& op : region.operations) {
    for (ValueId id : op.results) out[static_cast<size_t>(id)] = &op;
    for (const Region& inner : op.regions) collect(inner, out);
  }
}

// Whether an index is a multiple of eight in every step.
bool is_multiple_of_eight(const std::vector<const Operation*>& definitions, ValueId id) {
  const Operation* op = definitions[id];
  if (!op) return false;
  auto operand = [&](size_t i) { return is_multiple_of_eight(definitions, op->operands[i]); };
  switch (op->op) {
    case Op::kIndexConstant:
      return op->integer % 8 == 0;
    case Op::kIndexAdd:
    case Op::kIndexSub:
      return operand(0) && operand(1);
    case Op::kIndexMul:
      return operand(0) || operand(1);
    default:
      return false;
  }
}

// Rows of scratch that matrices can be loaded from: each begins with a whole unit of 16 bytes.
const Operation* scratch_rows(const Kernel& kernel,
                              const std::vector<const Operation*>& definitions, ValueId id) {
  const Operation* load = definitions[id];
  if (!load || load->op != Op::kLoad || kernel.types[id].shape.size() != 2) return nullptr;
  const Operation* scratch = definitions[load->operands[0]];
  const Operation* column_stride = definitions[load->operands[3]];
  bool whole = load->operands[4] == kNone && load->operands[5] == kNone;
  bool dense = column_stride && column_stride->op == Op::kIndexConstant &&
               column_stride->integer == 1 && kernel.types[id].shape[1] % 16 == 0;
  bool aligned = is_multiple_of_eight(definitions, load->operands[1]) &&
                 is_multiple_of_eight(definitions, load->operands[2]);
  return scratch && scratch->op == Op::kAlloc && whole && dense && aligned ? load : nullptr;
}

// Whole steps of 16 columns of all rows of a stage.
bool is_columns(const Kernel& kernel, const std::vector<const Operation*>& definitions,
                const Operation& read) {
  constexpr int kStep = 16;
  const Operation* first = read.operands[2] == kNone ? nullptr : definitions[read.operands[2]];
  const std::vector<int>&ring = kernel.types[read.operands[0]].shape,
        &shape = kernel.types[read.results[0]].shape;
  if (!first || first->op != Op::kIndexConstant || ring.size() != 2 || shape.size() != 2) {
    return false;
  }
  return read.integers == std::vector<int64_t>{ring[1], 1} && shape[0] == ring[0] &&
         shape[1] % kStep == 0 && first->integer % kStep == 0 &&
         first->integer + shape[1] <= ring[1];
}

}  // namespace

int first_column(const std::vector<const Operation*>& definitions, const Operation& read) {
  return read.operands[2] == kNone ? 0 : static_cast<int>(definitions[read.operands[2]]->integer);
}

std::vector<const Operation*> definitions_of(const Kernel& kernel) {
  std::vector<const Operation*> out(kernel.types.size());
  collect(kernel.body, out);
  return out;
}

std::optional<RingDot> ring_dot(const Kernel& kernel,
                                const std::vector<const Operation*>& definitions,
                                const Operation& op, int threads) {
  constexpr int kWholeRow = 128, kLeastRow = 32;  // bytes
  if (!is_tensor_core_dot(kernel, op)) return std::nullopt;
  // The whole stage, in rows of 128 bytes; on the right also of 64 or 32, and of 256 for groups.
  // Where its rows are turned, some columns of it.
  auto stage = [&](ValueId id, int least_row, bool may_end = false,
                   bool may_be_columns = false) -> const Operation* {
    const Operation* read = definitions[id];
    if (!read || read->op != Op::kRead) return nullptr;
    if (read->operands[3] != kNone && !may_end) return nullptr;
    const Type& ring = kernel.types[read->operands[0]];
    bool plain = read->operands[2] == kNone && read->integers.empty();
    bool whole = plain && ring.shape == kernel.types[id].shape;
    whole |= may_be_columns && is_columns(kernel, definitions, *read);
    int row = ring.shape.back() * bit_width(ring.dtype) / 8;
    bool fits = row >= least_row && (row == 128 || row == 64 || row == 32);
    fits |= row == 2 * kWholeRow && op.integer > 0 && id != op.operands[1];
    return whole && fits ? read : nullptr;
  };
  RingDot out{nullptr, stage(op.operands[1], kWholeRow)};
  const Operation* turned = definitions[op.operands[2]];
  const std::vector<int>&left = kernel.types[op.operands[1]].shape,
        &right = kernel.types[op.operands[2]].shape;
  if (turned && turned->op == Op::kTranspose) {
    out.right = stage(turned->operands[0], kLeastRow, /*may_end=*/false, /*may_be_columns=*/true);
    bool few = kernel.types[op.results[0]].shape[1] <= kFewColumns;
    if (!out.right && few) out.right = scratch_rows(kernel, definitions, turned->operands[0]);
  } else if (right[0] == std::max<int64_t>(1, op.integer) * left[1]) {
    bool two = turned && turned->op == Op::kConcat && turned->axis == 1 &&
               turned->operands.size() == 2 && op.integer == 0;
    if (two) {
      out.right = stage(turned->operands[0], kWholeRow, /*may_end=*/true);
      out.beside = stage(turned->operands[1], kWholeRow, /*may_end=*/true);
      if (!out.beside) return std::nullopt;
    } else {
      out.right = stage(op.operands[2], kLeastRow, /*may_end=*/true);
    }
    out.rows_are_k = true;
  }
  bool both_are_stages = out.left && out.right && out.right->op == Op::kRead && !out.rows_are_k;
  if (op.tf32 && !both_are_stages) return std::nullopt;
  const std::vector<int>& sums = kernel.types[op.results[0]].shape;
  bool fits = Layout::sums(sums, threads) &&
              Layout::left_operand(kernel.types[op.operands[1]].shape, threads);
  // Every warp has 16 rows of one group.
  if (op.integer > 0) fits = fits && sums[0] * 2 == threads && threads / kWarp % op.integer == 0;
  if (out.right || op.integer == 0) return out.right && fits ? std::optional(out) : std::nullopt;
  auto groups = static_cast<int>(op.integer);
  out.rows_are_k = groups > 1 && right[0] == groups * left[1];
  fits = fits && Layout::right_operand(right, threads, groups, out.rows_are_k);
  return fits ? std::optional(out) : std::nullopt;
}

std::vector<Layout> assign_layouts(const Kernel& kernel, int threads) {
  return solve(constraints_of(kernel, threads));
}

}  // namespace tenon::codegen
