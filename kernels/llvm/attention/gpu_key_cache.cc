#include "kernels/llvm/attention/gpu_key_cache.h"

#include <algorithm>

#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

constexpr int kThreads = 128;
constexpr int kTileElements = kThreads * 32;
constexpr int64_t kMaxColumns = 128;

class GpuAppend {
 public:
  GpuAppend(const ir::Graph& graph, const AttentionProblem& problem, const CacheAppend& cache)
      : problem_(problem),
        cache_(cache),
        columns_(static_cast<int>(std::min(kMaxColumns, (cache.depth + 15) / 16 * 16))),
        rows_(kTileElements / columns_ / 16 * 16),
        writer_("append_keys"),
        b_(writer_.builder) {
    const DType type = storage_type(cache.dtype);
    past_ = writer_.buffer("past", type, BufferArgument::value(cache.past));
    fresh_ = writer_.buffer("new", type, BufferArgument::value(cache.fresh));
    const ir::ValueId lengths = problem.attention.kv_lengths;
    if (lengths != ir::kNoValue) {
      lengths_ =
          writer_.buffer("lengths", graph.value(lengths).dtype, BufferArgument::value(lengths));
    }
    present_ = writer_.buffer("present", type, cache.present);
    for (const Dim& dim :
         {problem.past, problem.keys, problem.all_keys, ceil_div(problem.all_keys, rows_),
          cache.strides.batch, cache.strides.head, cache.strides.row, cache.strides.column}) {
      writer_.declare(dim);
    }
  }

  Launch emit() {
    const int64_t heads = problem_.attention.kv_heads;
    const ValueId blocks = dim(ceil_div(problem_.all_keys, rows_));
    const ValueId number = b_.div(b_.task(), blocks);  // of the head, over all batch rows
    const ValueId batch = b_.div(number, b_.index(heads)), head = b_.rem(number, b_.index(heads));
    first_ = b_.mul(b_.rem(b_.task(), blocks), b_.index(rows_));
    end_ = b_.min(dim(problem_.all_keys), b_.add(first_, b_.index(rows_)));
    present_base_ = b_.mul(number, b_.mul(dim(problem_.all_keys), b_.index(cache_.depth)));
    const ValueId past_base = b_.mul(number, b_.mul(dim(problem_.past), b_.index(cache_.depth)));
    const ValueId fresh_base =
        b_.add(b_.mul(batch, dim(cache_.strides.batch)), b_.mul(head, dim(cache_.strides.head)));
    const ValueId kept = kept_rows(writer_, problem_, lengths_, batch);
    const ValueId filled = b_.add(kept, dim(problem_.keys));

    copy(b_.index(0), kept, past_, past_base, {0, 0, Dim(cache_.depth), 1});
    copy(kept, filled, fresh_, fresh_base, cache_.strides);
    for_columns(filled, dim(problem_.all_keys), [&](ValueId, ValueId, ValueId, ValueId) {
      const DType type = storage_type(cache_.dtype);
      return is_floating(type) ? b_.constant(type, 0, {rows_, columns_})
                               : b_.integer_constant(type, 0, {rows_, columns_});
    });
    Launch launch = writer_.finish(problem_.batch * heads * ceil_div(problem_.all_keys, rows_),
                                   kTileElements / 8);
    launch.threads = kThreads;
    return launch;
  }

 private:
  ValueId dim(const Dim& value) { return writer_.index(value); }

  // Stores what `tile(row, rows left, column, columns left)` makes of the rows of the cache in
  // [begin, end) that are this task's.
  template <typename MakeTile>
  void for_columns(ValueId begin, ValueId end, const MakeTile& tile) {
    const ValueId row = b_.max(first_, begin);
    const ValueId left = b_.max(b_.index(0), b_.sub(b_.min(end_, end), row));
    const ValueId depth = b_.index(cache_.depth);
    b_.loop(b_.index(0), depth, b_.index(columns_), {}, [&](ValueId column, auto) {
      const ValueId columns_left = b_.sub(depth, column);
      const ValueId at = b_.add(present_base_, b_.add(b_.mul(row, depth), column));
      b_.store({present_, at, {depth, b_.index(1)}, {left, columns_left}},
               tile(row, left, column, columns_left));
      return std::vector<ValueId>{};
    });
  }

  // Rows [begin, end) of the cache are rows 0, 1, … of `from`.
  void copy(ValueId begin, ValueId end, ValueId from, ValueId base, const HeadStrides& strides) {
    for_columns(
        begin, end, [&](ValueId row, ValueId left, ValueId column, ValueId columns_left) -> Tile {
          const ValueId row_stride = dim(strides.row), step = dim(strides.column);
          const ValueId at =
              b_.add(b_.add(base, b_.mul(b_.sub(row, begin), row_stride)), b_.mul(column, step));
          return b_.load({from, at, {row_stride, step}, {left, columns_left}}, {rows_, columns_});
        });
  }

  const AttentionProblem& problem_;
  const CacheAppend& cache_;
  int columns_, rows_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId past_ = kNone, fresh_ = kNone, lengths_ = kNone, present_ = kNone;
  ValueId first_ = kNone, end_ = kNone, present_base_ = kNone;
};

}  // namespace

Launch gpu_append_launch(const ir::Graph& graph, const AttentionProblem& problem,
                         const CacheAppend& cache) {
  return GpuAppend(graph, problem, cache).emit();
}

}  // namespace tenon::kernels
