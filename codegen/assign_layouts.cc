// Which tile lies how.
#include <optional>

#include "codegen/layout_inference/solve.h"
#include "codegen/layouts.h"

namespace tenon::codegen {

bool is_tensor_core_dot(const Kernel& kernel, const Operation& op) {
  if (op.op != Op::kDot) return false;
  DType a = kernel.types[op.operands[1]].dtype, b = kernel.types[op.operands[2]].dtype;
  return a == b && (a == DType::kF16 || a == DType::kBF16) &&
         kernel.types[op.operands[0]].dtype == DType::kF32;
}

namespace {

void collect(const Region& region, std::vector<const Operation*>& out) {
  for (const Operation& op : region.operations) {
    for (ValueId id : op.results) out[static_cast<size_t>(id)] = &op;
    for (const Region& inner : op.regions) collect(inner, out);
  }
}

}  // namespace

std::vector<const Operation*> definitions_of(const Kernel& kernel) {
  std::vector<const Operation*> out(kernel.types.size());
  collect(kernel.body, out);
  return out;
}

std::optional<RingDot> ring_dot(const Kernel& kernel,
                                const std::vector<const Operation*>& definitions,
                                const Operation& op, int threads) {
  if (!is_tensor_core_dot(kernel, op)) return std::nullopt;
  // The whole slot, in rows of 128 bytes.
  auto slot = [&](ValueId id) -> const Operation* {
    const Operation* read = definitions[id];
    if (!read || read->op != Op::kRead || read->operands[2] != kNone || !read->integers.empty()) {
      return nullptr;
    }
    const Type& ring = kernel.types[read->operands[0]];
    bool whole = ring.shape == kernel.types[id].shape;
    return whole && ring.shape.back() * bit_width(ring.dtype) == 1024 ? read : nullptr;
  };
  const Operation* turned = definitions[op.operands[2]];
  if (!turned || turned->op != Op::kTranspose) return std::nullopt;
  RingDot out{slot(turned->operands[0]), slot(op.operands[1])};
  const std::vector<int>& sums = kernel.types[op.results[0]].shape;
  bool fits = Layout::sums(sums, threads) &&
              Layout::left_operand(kernel.types[op.operands[1]].shape, threads);
  // Every warp has 16 rows of one group.
  if (op.integer > 0) fits = fits && sums[0] * 2 == threads && threads / kWarp % op.integer == 0;
  return out.right && fits ? std::optional(out) : std::nullopt;
}

std::vector<Layout> assign_layouts(const Kernel& kernel, int threads) {
  return solve(constraints_of(kernel, threads));
}

}  // namespace tenon::codegen
