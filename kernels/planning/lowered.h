// What a candidate makes of a fused node: launches of tile kernels over named buffers. Plain data;
// the executable compiles the kernels, places the buffers and runs the launches in order.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/shape.h"
#include "codegen/tile/ir.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/device_packing.h"
#include "kernels/planning/kernel_config.h"
#include "kernels/planning/library_call.h"

namespace tenon::kernels {

struct BufferArgument {
  enum class Kind : uint8_t { kValue, kPacked, kScratch, kCounters } kind{};
  int32_t id = 0;  // ir::ValueId, or index into Lowered::packed, scratch or counters

  static BufferArgument value(ir::ValueId id) { return {Kind::kValue, id}; }
  static BufferArgument packed(int32_t id) { return {Kind::kPacked, id}; }
  static BufferArgument scratch(int32_t id) { return {Kind::kScratch, id}; }
  static BufferArgument counters(int32_t id) { return {Kind::kCounters, id}; }
};

// Indices that become addresses are checked before the launch: elements `first`, `first + step`, …
// of `value` (i32 or i64) must lie in [-bound, bound), or in [least, bound) where negative ones do
// not count from the end. Otherwise Run fails with the node's name. Lengths are checked likewise.
struct IndexCheck {
  ir::ValueId value = ir::kNoValue;
  Dim bound;
  int64_t first = 0, step = 1;
  bool from_end = true;
  int64_t least = 0;
  std::string node = {};  // who reads by them, where that is not the node which is lowered
};

// Sizes that a kernel needs to fit beyond what the operator asked for (ir::Graph::requirements),
// else Run fails with the node's name.
struct SizeCheck {
  Dim left;
  ir::Relation relation{};
  Dim right;
};

// The launch only copies what `from` holds to `to`: it is left out where the caller bound both to
// the same memory. Where they overlap in any other way Run fails with the node's name.
struct ElidableCopy {
  ir::ValueId from = ir::kNoValue, to = ir::kNoValue;
};

// The launch reads `from` to write the very same bytes of `to`, each read before it is written: it
// may run where both are the same memory.
struct InPlace {
  ir::ValueId from = ir::kNoValue, to = ir::kNoValue;
};

// What the main launch of a product on the host multiplies, for the report.
struct ProductWork {
  Dim rows;                             // of all batches
  Dim flops;                            // of all rows
  int tile_rows = 0, tile_columns = 0;  // sums that one step keeps in registers
};

enum class LaunchKind : uint8_t { kKernel, kLibraryCall, kCopy, kCollective };
std::string_view name(LaunchKind kind);

// One launch, of one of several kinds. A kernel's buffers and indices pair with its parameters of
// each kind, in order; a library call gets them as they are; a copy has two buffers, from and to.
// Two buffers may be the same memory: a scatter reads what it adds to.
struct Launch {
  codegen::Kernel kernel;
  std::shared_ptr<const LibraryCall> call = {};  // instead
  std::optional<Dim> copy_bytes = {};            // instead
  std::vector<BufferArgument> buffers;
  // Of a call: which of its buffers it writes; it reads the others, or all with `reads_written`.
  std::vector<bool> writes = {};
  bool reads_written = false;
  std::vector<Dim> indices;
  Dim tasks;  // 0: the launch is left out; what a call or a copy does is one task

  LaunchKind kind() const {
    if (copy_bytes) return LaunchKind::kCopy;
    if (call == nullptr) return LaunchKind::kKernel;
    return call->is_collective() ? LaunchKind::kCollective : LaunchKind::kLibraryCall;
  }
  static Launch copy(BufferArgument from, BufferArgument to, Dim bytes);
  static Launch library(std::shared_ptr<const LibraryCall> call,
                        std::vector<BufferArgument> buffers, std::vector<bool> writes);

  // Rough nanoseconds of one task on one core: decides how many tasks a thread takes at once and
  // whether threads are worth waking.
  Dim task_cost = 1000;
  int threads = 128;  // of the block that runs a task on a GPU
  // Shared memory that a CTA takes at least. Tasks are dealt evenly over the places that there
  // are: an SM must not take more CTAs than that counts on.
  int64_t shared_bytes = 0;
  std::vector<IndexCheck> checks;
  std::optional<ElidableCopy> elidable_copy;
  std::vector<InPlace> in_place;
  std::optional<ProductWork> product;
};

// Writes bytes [first_byte, first_byte + out.size()) of a constant to `out`, every one of them.
// Called for pieces in any order and from several threads at once, only while the graph lives.
using PackPiece = std::function<void(int64_t first_byte, std::span<std::byte> out)>;

// A constant in the layout that its kernel wants, made once when the session is created. Bytes that
// are there, or a way to make any piece: weights of a GPU then never lie whole in host memory.
struct PackedConstant {
  std::shared_ptr<std::byte[]> data;  // 64-byte aligned; null: `pack` makes the bytes
  size_t bytes = 0;
  PackPiece pack = {};
  size_t unit = 1;               // pieces begin at multiples of it, and end at one or at the end
  DevicePacking on_device = {};  // the same bytes, where a GPU can make them itself
};

// How the kernel of a range of rows was cut, for the report.
struct ConfigChoice {
  std::string problem;  // "rows <= 8": what this kernel takes
  PlannedKernel chosen;
  struct Other {
    PlannedKernel kernel;
    std::string dropped;  // why it could not be taken; empty: it was not wanted
    std::string text() const {
      return kernel.text() + (dropped.empty() ? "" : ": dropped, " + dropped);
    }
  };
  std::vector<Other> others;  // what came next, best first
};

// Bytes of a temporary buffer, planned into the arena.
struct Scratch {
  Dim bytes;
  // No other launch gets its memory, so that none need have ended before it is used.
  bool own = false;

  Scratch(Dim bytes, bool own = false) : bytes(std::move(bytes)), own(own) {}
};

struct Lowered {
  BufferArgument add_scratch(Scratch bytes) {
    scratch.push_back(std::move(bytes));
    return BufferArgument::scratch(static_cast<int32_t>(scratch.size()) - 1);
  }

  std::vector<Launch> launches;
  std::vector<PackedConstant> packed;
  std::vector<SizeCheck> sizes;
  std::vector<Scratch> scratch;
  // Numbers of i32 counters in buffers that are zero when a launch begins, because the one that
  // counts in them puts them back. No other launch gets their memory.
  std::vector<Dim> counters;
  // Constants that packing replaced: the executable does not keep them.
  std::vector<ir::ValueId> replaced_constants;
  std::vector<ConfigChoice> configs;
};

// What was made for a launch that is not taken after all goes again.
class LoweredMark {
 public:
  explicit LoweredMark(const Lowered& lowered)
      : packed_(lowered.packed.size()),
        sizes_(lowered.sizes.size()),
        scratch_(lowered.scratch.size()),
        counters_(lowered.counters.size()) {}

  void roll_back(Lowered& lowered) const {
    const auto cut = [](auto& all, size_t size) {
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(size), all.end());
    };
    cut(lowered.packed, packed_);
    cut(lowered.sizes, sizes_);
    cut(lowered.scratch, scratch_);
    cut(lowered.counters, counters_);
  }

 private:
  size_t packed_, sizes_, scratch_, counters_;
};

std::shared_ptr<std::byte[]> aligned_bytes(size_t bytes);
// All pieces of a constant.
std::shared_ptr<std::byte[]> pack_whole(size_t bytes, const PackPiece& pack, size_t unit);

}  // namespace tenon::kernels
