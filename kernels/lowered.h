// What a candidate makes of a fused node: launches of tile kernels over named buffers. Plain data;
// the executable compiles the kernels, places the buffers and runs the launches in order.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "base/shape.h"
#include "codegen/tile/ir.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels {

struct BufferArgument {
  enum class Kind : uint8_t { kValue, kPacked, kScratch } kind{};
  int32_t id = 0;  // ir::ValueId, index into Lowered::packed, or index into Lowered::scratch

  static BufferArgument value(ir::ValueId id) { return {Kind::kValue, id}; }
  static BufferArgument packed(int32_t id) { return {Kind::kPacked, id}; }
  static BufferArgument scratch(int32_t id) { return {Kind::kScratch, id}; }
};

// Indices that become addresses are checked before the launch: elements `first`, `first + step`, …
// of `value` (i32 or i64) must lie in [-bound, bound), or in [0, bound) where negative ones do not
// count from the end. Otherwise Run fails with the node's name.
struct IndexCheck {
  ir::ValueId value = ir::kNoValue;
  Dim bound;
  int64_t first = 0, step = 1;
  bool from_end = true;
};

// Sizes that shapes alone do not make equal: `size` must be 1 or `over`, else Run fails with the
// node's name.
struct SizeCheck {
  Dim size, over;
};

// One launch. Buffers and indices pair with the kernel's parameters of each kind, in order.
// Two buffers may be the same memory: a scatter reads what it adds to.
struct Launch {
  codegen::Kernel kernel;
  std::vector<BufferArgument> buffers;
  std::vector<Dim> indices;
  Dim tasks;
  // Rough nanoseconds of one task on one core: decides how many tasks a thread takes at once and
  // whether threads are worth waking.
  Dim task_cost = 1000;
  int threads = 128;  // of the block that runs a task on a GPU
  std::vector<IndexCheck> checks;
};

// A constant in the layout that its kernel wants, made once when the session is created.
struct PackedConstant {
  std::shared_ptr<std::byte[]> data;  // 64-byte aligned
  size_t bytes = 0;
};

struct Lowered {
  std::vector<Launch> launches;
  std::vector<PackedConstant> packed;
  std::vector<SizeCheck> sizes;
  std::vector<Dim> scratch;  // bytes of each temporary buffer, planned into the arena
  // Constants that packing replaced: the executable does not keep them.
  std::vector<ir::ValueId> replaced_constants;
};

std::shared_ptr<std::byte[]> aligned_bytes(size_t bytes);

}  // namespace tenon::kernels
