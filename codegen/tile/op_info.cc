#include "codegen/tile/op_info.h"

#include <array>

namespace tenon::codegen {

namespace {

using enum OpGroup;
constexpr int kAny = OpInfo::kAny;

constexpr unsigned operand(int i) { return 1u << i; }

constexpr OpInfo entry(Op op, std::string_view name, OpGroup group, int operands,
                       OpTraits traits = {}) {
  return {traits, op, name, group, operands};
}

constexpr std::array kTable = std::to_array<OpInfo>({
    entry(Op::kTask, "task", kIndex, 0),
    entry(Op::kIndexConstant, "index.constant", kIndex, 0),
    entry(Op::kIndexAdd, "index.add", kIndex, 2),
    entry(Op::kIndexSub, "index.sub", kIndex, 2),
    entry(Op::kIndexMul, "index.mul", kIndex, 2),
    entry(Op::kIndexDiv, "index.div", kIndex, 2),
    entry(Op::kIndexRem, "index.rem", kIndex, 2),
    entry(Op::kIndexMin, "index.min", kIndex, 2),
    entry(Op::kIndexMax, "index.max", kIndex, 2),
    entry(Op::kIndexLess, "index.less", kIndex, 2),
    entry(Op::kIndexEqual, "index.equal", kIndex, 2),
    entry(Op::kIndexSelect, "index.select", kIndex, 3),
    entry(Op::kIndexFromTile, "index.from_tile", kIndex, 1),
    entry(Op::kConstant, "constant", kMake, 0),
    entry(Op::kSplat, "splat", kMake, 1),
    entry(Op::kFromIndex, "from_index", kMake, 1),
    entry(Op::kIota, "iota", kMake, 0),
    entry(Op::kUnary, "unary", kElementwise, 1),
    entry(Op::kBinary, "binary", kElementwise, 2),
    entry(Op::kTernary, "ternary", kElementwise, 3),
    entry(Op::kCompare, "compare", kElementwise, 2),
    entry(Op::kSelect, "select", kElementwise, 3),
    entry(Op::kCast, "cast", kElementwise, 1),
    entry(Op::kBitcast, "bitcast", kElementwise, 1),
    entry(Op::kBroadcast, "broadcast", kShape, 1),
    entry(Op::kReshape, "reshape", kShape, 1),
    entry(Op::kTranspose, "transpose", kShape, 1),
    entry(Op::kSlice, "slice", kShape, 1),
    entry(Op::kConcat, "concat", kShape, 1, {.has_more = true}),
    entry(Op::kPermute, "permute", kShape, 1),
    entry(Op::kReduce, "reduce", kShape, 1),
    entry(Op::kLookup, "lookup", kProduct, 2),
    entry(Op::kDot, "dot", kProduct, 3),
    entry(Op::kDotI8, "dot_i8", kProduct, 3),
    entry(Op::kTileDot, "tile_dot", kMemory, 8,
          {.results = 0, .reads = operand(0) | operand(2) | operand(4), .writes = operand(0)}),
    entry(Op::kAlloc, "alloc", kMemory, 0),
    entry(Op::kLoad, "load", kMemory, 2, {.has_more = true, .reads = operand(0)}),
    entry(Op::kStore, "store", kMemory, 3,
          {.has_more = true, .results = 0, .writes = operand(0), .stored = 2}),
    entry(Op::kGather, "gather", kMemory, 4, {.reads = operand(0)}),
    entry(Op::kScatter, "scatter", kMemory, 5, {.results = 0, .writes = operand(0), .stored = 3}),
    entry(Op::kPrefetch, "prefetch", kMemory, 2, {.results = 0}),
    entry(Op::kArrive, "arrive", kMemory, 2, {.reads = operand(0), .writes = operand(0)}),
    entry(Op::kRing, "ring", OpGroup::kRing, 0),
    entry(Op::kBulkLoad, "bulk_load", OpGroup::kRing, 4,
          {.results = 0, .reads = operand(2), .fetches = true}),
    entry(Op::kTmaLoad, "tma_load", OpGroup::kRing, 8,
          {.results = 0, .reads = operand(2), .fetches = true}),
    entry(Op::kRead, "read", OpGroup::kRing, 4),
    entry(Op::kPipeline, "pipeline", kControl, 2,
          {.has_more = true, .results = kAny, .regions = 2}),
    entry(Op::kFor, "for", kControl, 3, {.has_more = true, .results = kAny, .regions = 1}),
    entry(Op::kIf, "if", kControl, 1, {.results = kAny, .regions = 2}),
    entry(Op::kYield, "yield", kControl, 0, {.has_more = true, .results = 0}),
});

constexpr bool is_in_order() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (kTable[i].op != static_cast<Op>(i)) return false;
  }
  return kTable.size() == static_cast<size_t>(Op::kYield) + 1;
}
static_assert(is_in_order());

}  // namespace

const OpInfo& info(Op op) { return kTable.at(static_cast<size_t>(op)); }
std::string_view name(Op op) { return info(op).name; }

}  // namespace tenon::codegen
