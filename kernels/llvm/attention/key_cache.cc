#include "kernels/llvm/attention/key_cache.h"

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::kNone;
using codegen::ValueId;

constexpr int kLanes = 16;

BufferArgument add_scratch(Lowered& lowered, const Dim& bytes) {
  lowered.scratch.push_back(bytes);
  return BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1);
}

// A row of `depth` elements from one buffer to another.
void copy_row(codegen::Builder& b, int64_t depth, ValueId from, ValueId from_offset,
              ValueId from_stride, ValueId to, ValueId to_offset) {
  b.loop(b.index(0), b.index(depth), b.index(kLanes), {}, [&](ValueId at, auto) {
    const ValueId left = b.sub(b.index(depth), at);
    const Tile codes =
        b.load({from, b.add(from_offset, b.mul(at, from_stride)), {from_stride}, {left}}, {kLanes});
    b.store({to, b.add(to_offset, at), {}, {left}}, codes);
    return std::vector<ValueId>{};
  });
}

// present[b, h] = past[b, h, :past(b)], k[b, h, :], zeros. One task is one head.
Launch append_launch(const ir::Graph& graph, const AttentionProblem& problem,
                     const CacheAppend& cache) {
  const auto& [past, fresh, strides, depth, dtype, present] = cache;
  const ir::Attention& attention = problem.attention;
  LaunchWriter writer("append_keys");
  codegen::Builder& b = writer.builder;
  const ValueId from_past = writer.buffer("past", storage_type(dtype), BufferArgument::value(past));
  const ValueId from_new = writer.buffer("new", storage_type(dtype), BufferArgument::value(fresh));
  const bool has_lengths = attention.kv_lengths != ir::kNoValue;
  const ValueId lengths = has_lengths
                              ? writer.buffer("lengths", graph.value(attention.kv_lengths).dtype,
                                              BufferArgument::value(attention.kv_lengths))
                              : kNone;
  const ValueId to = writer.buffer("present", storage_type(dtype), present);
  for (const Dim& dim : {problem.past, problem.keys, problem.all_keys, strides.batch, strides.head,
                         strides.row, strides.column}) {
    writer.declare(dim);
  }

  const ValueId heads = b.index(attention.kv_heads), width = b.index(depth);
  const ValueId batch = b.div(b.task(), heads), head = b.rem(b.task(), heads);
  const ValueId rows = writer.index(problem.all_keys), fresh_rows = writer.index(problem.keys);
  const ValueId kept = kept_rows(writer, problem, lengths, batch);
  const ValueId past_base = b.mul(b.task(), b.mul(writer.index(problem.past), width));
  const ValueId new_base =
      b.add(b.mul(batch, writer.index(strides.batch)), b.mul(head, writer.index(strides.head)));
  const ValueId to_base = b.mul(b.task(), b.mul(rows, width));
  const auto to_row = [&](ValueId row) { return b.add(to_base, b.mul(row, width)); };
  b.loop(b.index(0), kept, b.index(1), {}, [&](ValueId row, auto) {
    copy_row(b, depth, from_past, b.add(past_base, b.mul(row, width)), b.index(1), to, to_row(row));
    return std::vector<ValueId>{};
  });
  b.loop(b.index(0), fresh_rows, b.index(1), {}, [&](ValueId row, auto) {
    copy_row(b, depth, from_new, b.add(new_base, b.mul(row, writer.index(strides.row))),
             writer.index(strides.column), to, to_row(b.add(kept, row)));
    return std::vector<ValueId>{};
  });
  b.loop(to_row(b.add(kept, fresh_rows)), to_row(rows), b.index(kLanes), {}, [&](ValueId at, auto) {
    const DType type = storage_type(dtype);
    const Tile zero =
        is_floating(type) ? b.constant(type, 0, {kLanes}) : b.integer_constant(type, 0, {kLanes});
    b.store({to, at, {}, {b.sub(to_row(rows), at)}}, zero);
    return std::vector<ValueId>{};
  });
  return writer.finish(problem.batch * attention.kv_heads, problem.all_keys * (depth / 8 + 1));
}

Launch convert_launch(DType dtype, BufferArgument from, BufferArgument to, const Dim& elements) {
  constexpr int kChunk = 4096;
  LaunchWriter writer("keys_to_f32");
  codegen::Builder& b = writer.builder;
  const ValueId source = writer.buffer("from", storage_type(dtype), from);
  const ValueId target = writer.buffer("to", DType::kF32, to);
  writer.declare(elements);
  const ValueId first = b.mul(b.task(), b.index(kChunk));
  const ValueId end = b.min(b.add(first, b.index(kChunk)), writer.index(elements));
  b.loop(first, end, b.index(kLanes), {}, [&](ValueId at, auto) {
    const ValueId left = b.sub(end, at);
    const Tile codes = b.load({source, at, {}, {left}}, {kLanes});
    b.store({target, at, {}, {left}}, decode_tile(b, codes, dtype));
    return std::vector<ValueId>{};
  });
  return writer.finish(ceil_div(elements, kChunk), kChunk / 8);
}

}  // namespace

ValueId kept_rows(LaunchWriter& writer, const AttentionProblem& problem, ValueId lengths,
                  ValueId batch) {
  codegen::Builder& b = writer.builder;
  const ValueId fresh = writer.index(problem.keys);
  const auto before_fresh = [&](ValueId end) { return b.max(b.index(0), b.sub(end, fresh)); };
  ValueId kept = writer.index(problem.past);
  if (lengths != kNone) {
    const ValueId length = b.index_from(b.load({lengths, batch, {}, {}}, {}));
    kept = b.min(kept, before_fresh(length));
  }
  // A length beyond the cache must not write past its end.
  return b.min(kept, before_fresh(writer.index(problem.all_keys)));
}

KeyRows appended_rows(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                      int which, AppendLaunch append, Lowered& lowered) {
  const ir::Attention& attention = problem.attention;
  const ir::ValueId fresh = which == 0 ? attention.k : attention.v;
  const HeadStrides& strides = which == 0 ? problem.k : problem.v;
  if (!problem.has_past()) return {BufferArgument::value(fresh), strides};

  const int64_t depth = which == 0 ? problem.depth : problem.value_depth;
  const DType dtype = graph.value(fresh).dtype;
  const Dim head = problem.all_keys * depth;
  const Dim batch = attention.kv_heads * head;
  const ir::ValueId present = node.output(which + 1);
  const BufferArgument target =
      present != ir::kNoValue
          ? BufferArgument::value(present)
          : add_scratch(lowered, problem.batch * batch * (bit_width(dtype) / 8));
  const ir::ValueId past = which == 0 ? attention.past_k : attention.past_v;
  lowered.launches.push_back(append(graph, problem, {past, fresh, strides, depth, dtype, target}));
  return {target, {batch, head, Dim(depth), 1}};
}

KeyRows key_rows(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
                 int which, Lowered& lowered) {
  const ir::Attention& attention = problem.attention;
  const ir::ValueId fresh = which == 0 ? attention.k : attention.v;
  const DType dtype = graph.value(fresh).dtype;
  KeyRows rows = appended_rows(graph, node, problem, which, append_launch, lowered);
  if (dtype == DType::kF32) return rows;
  const Dim elements = problem.has_past() ? problem.batch * rows.strides.batch
                                          : element_count(*graph.value(fresh).shape);
  const BufferArgument f32 = add_scratch(lowered, elements * 4);
  lowered.launches.push_back(convert_launch(dtype, rows.buffer, f32, elements));
  rows.buffer = f32;
  return rows;
}

}  // namespace tenon::kernels
