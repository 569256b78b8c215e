#include "kernels/llvm/attention/key_cache.h"

#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::ValueId;

constexpr int kLanes = 16;

BufferArgument add_scratch(Lowered& lowered, const Dim& bytes) {
  lowered.scratch.push_back(bytes);
  return BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1);
}

class Placing {
 public:
  Placing(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
          const HeadTiles& tiles, Lowered& lowered)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        tiles_(tiles),
        lowered_(lowered) {}

  AttentionOperands run() {
    const bool turns = attention_.has_rotary();
    NewHeads q{.from = attention_.q,
               .from_strides = problem_.q,
               .heads = attention_.q_heads,
               .depth = problem_.depth,
               .rotated = turns,
               .norm = attention_.q_norm};
    NewHeads k{.from = attention_.k,
               .from_strides = problem_.k,
               .heads = attention_.kv_heads,
               .depth = problem_.depth,
               .rotated = turns,
               .norm = attention_.k_norm};
    NewHeads v{.from = attention_.v,
               .from_strides = problem_.v,
               .heads = attention_.kv_heads,
               .depth = problem_.value_depth};
    const AttentionOperands operands = {
        as_given_or_placed(std::move(q)),
        cached(std::move(k), attention_.past_k, node_.output(1)),
        cached(std::move(v), attention_.past_v, node_.output(2)),
    };
    if (!moved_.empty()) {
      lowered_.launches.push_back(place_heads_launch(graph_, problem_, moved_, tiles_));
    }
    return operands;
  }

 private:
  Dim bytes_of(const NewHeads& heads, const Dim& elements) const {
    return elements * (bit_width(graph_.value(heads.from).dtype) / 8);
  }

  HeadRows placed(NewHeads heads, HeadRows rows) {
    heads.to = rows.buffer;
    heads.to_strides = rows.strides;
    moved_.push_back(std::move(heads));
    return rows;
  }

  HeadRows as_given_or_placed(NewHeads heads) {
    if (!heads.rotated && heads.norm == ir::kNoValue && heads.from_strides.offset.is(0)) {
      return {BufferArgument::value(heads.from), heads.from_strides};
    }
    const Dim row = heads.heads * heads.depth, batch = problem_.keys * row;
    const BufferArgument scratch = add_scratch(lowered_, bytes_of(heads, problem_.batch * batch));
    return placed(std::move(heads), {scratch, {batch, Dim(heads.depth), row, 1}});
  }

  HeadRows cached(NewHeads heads, ir::ValueId past, ir::ValueId present) {
    if (past == ir::kNoValue) return as_given_or_placed(std::move(heads));
    const Dim head = problem_.all_keys * heads.depth, batch = heads.heads * head;
    const BufferArgument cache =
        present != ir::kNoValue ? BufferArgument::value(present)
                                : add_scratch(lowered_, bytes_of(heads, problem_.batch * batch));
    lowered_.launches.push_back(
        bring_past_launch(graph_, problem_, {past, present, cache, heads.depth}, tiles_));
    const HeadStrides strides = {batch, head, Dim(heads.depth), 1};
    heads.behind_past = true;
    return placed(std::move(heads), {cache, strides});
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const HeadTiles& tiles_;
  Lowered& lowered_;
  std::vector<NewHeads> moved_;
};

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

AttentionOperands placed_operands(const ir::Graph& graph, const ir::Node& node,
                                  const AttentionProblem& problem, const HeadTiles& tiles,
                                  Lowered& lowered) {
  return Placing(graph, node, problem, tiles, lowered).run();
}

AttentionOperands widened_operands(const ir::Graph& graph, const ir::Node& node,
                                   const AttentionProblem& problem, const HeadTiles& tiles,
                                   Lowered& lowered) {
  AttentionOperands operands = placed_operands(graph, node, problem, tiles, lowered);
  const auto widen = [&](HeadRows& rows, ir::ValueId fresh) {
    const DType dtype = graph.value(fresh).dtype;
    if (dtype == DType::kF32) return;
    const bool is_given = rows.buffer.kind == BufferArgument::Kind::kValue && !problem.has_past();
    const Dim elements =
        is_given ? element_count(*graph.value(fresh).shape) : problem.batch * rows.strides.batch;
    const BufferArgument f32 = add_scratch(lowered, elements * 4);
    lowered.launches.push_back(convert_launch(dtype, rows.buffer, f32, elements));
    rows.buffer = f32;
  };
  widen(operands.keys, problem.attention.k);
  widen(operands.values, problem.attention.v);
  return operands;
}

}  // namespace tenon::kernels
