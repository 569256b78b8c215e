#include "kernels/llvm/attention/key_cache.h"

#include "kernels/llvm/attention/cache_codes.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::ValueId;

constexpr int kLanes = 16;

class Placing {
 public:
  Placing(const ir::Graph& graph, const ir::Node& node, const AttentionProblem& problem,
          const HeadTiles& tiles, DType dequantized, const Dim& reads_numbers, Lowered& lowered)
      : graph_(graph),
        node_(node),
        problem_(problem),
        attention_(problem.attention),
        tiles_(tiles),
        dequantized_(dequantized),
        reads_numbers_(reads_numbers),
        lowered_(lowered) {}

  PlacedOperands run() {
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
    const HeadRows queries = as_given_or_placed(std::move(q));
    const auto [keys, key_codes] =
        cached(std::move(k), attention_.past_k, node_.output(1), attention_.k_scale);
    const auto [values, value_codes] =
        cached(std::move(v), attention_.past_v, node_.output(2), attention_.v_scale);
    if (!moved_.empty()) {
      lowered_.launches.push_back(place_heads_launch(graph_, problem_, moved_, tiles_));
    }
    for (Launch& launch : around_codes_) lowered_.launches.push_back(std::move(launch));
    return {{queries, keys, values}, {queries, key_codes, value_codes}};
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
    const BufferArgument scratch = lowered_.add_scratch(bytes_of(heads, problem_.batch * batch));
    return placed(std::move(heads), {scratch, {batch, Dim(heads.depth), row, 1}});
  }

  HeadStrides cache_strides(const NewHeads& heads) const {
    const Dim head = problem_.all_keys * heads.depth;
    return {heads.heads * head, head, Dim(heads.depth), 1};
  }

  // What becomes present, with past's rows in it.
  BufferArgument brought_past(const NewHeads& heads, ir::ValueId past, ir::ValueId present) {
    const int64_t width = problem_.cache_width(heads.depth);
    const Dim elements = problem_.batch * heads.heads * problem_.all_keys * width;
    const BufferArgument cache =
        present != ir::kNoValue
            ? BufferArgument::value(present)
            : lowered_.add_scratch(elements * (bit_width(graph_.value(past).dtype) / 8));
    lowered_.launches.push_back(
        copy_past_launch(graph_, problem_, {past, present, cache, width}, tiles_));
    return cache;
  }

  struct Cached {
    HeadRows numbers, codes;
  };
  Cached cached(NewHeads heads, ir::ValueId past, ir::ValueId present, ir::ValueId scale) {
    if (past == ir::kNoValue) return {as_given_or_placed(std::move(heads)), {}};
    const BufferArgument cache = brought_past(heads, past, present);
    if (attention_.has_codes()) {
      return {dequantized(heads, {cache, scale, heads.depth}),
              code_words(problem_, cache, problem_.all_keys, heads.depth)};
    }
    heads.behind_past = true;
    return {placed(heads, {cache, cache_strides(heads)}), {}};
  }

  HeadRows dequantized(const NewHeads& heads, const CacheCodes& cache) {
    const DType own = graph_.value(heads.from).dtype;
    const DType wide = dequantized_ == DType::kUndefined ? own : dequantized_;
    const HeadStrides strides = cache_strides(heads);
    const BufferArgument numbers =
        lowered_.add_scratch(problem_.batch * strides.batch * (bit_width(wide) / 8));
    const HeadRows fresh = as_given_or_placed(heads);
    around_codes_.push_back(
        append_codes_launch(graph_, problem_, cache, fresh.buffer, own, fresh.strides, tiles_));
    Launch dequantize = dequantize_cache_launch(graph_, problem_, cache, numbers, wide, tiles_);
    dequantize.tasks = dequantize.tasks * reads_numbers_;
    if (!dequantize.tasks.is(0)) around_codes_.push_back(std::move(dequantize));
    return {numbers, strides};
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  const AttentionProblem& problem_;
  const ir::Attention& attention_;
  const HeadTiles& tiles_;
  const DType dequantized_;  // what codes become; kUndefined: the type of the new heads
  const Dim reads_numbers_;
  Lowered& lowered_;
  std::vector<NewHeads> moved_;
  std::vector<Launch> around_codes_;  // behind the new heads
};

Launch convert_launch(DType dtype, BufferArgument from, BufferArgument to, const Dim& elements) {
  constexpr int kChunk = 4096;
  LaunchWriter writer("keys_to_f32");
  codegen::Builder& b = writer.builder;
  const ValueId source = writer.buffer("from", storage_type(dtype), from);
  const ValueId target = writer.buffer("to", DType::kF32, to);
  writer.declare(elements);
  const ValueId first = b.mul({b.task(), b.index(kChunk)});
  const ValueId end = b.min({b.add(first, b.index(kChunk)), writer.index(elements)});
  b.loop(first, end, b.index(kLanes), {}, [&](ValueId at, auto) {
    const ValueId left = b.sub(end, at);
    const Tile codes = b.load({source, at, {}, {left}}, {kLanes});
    b.store({target, at, {}, {left}}, dequantize_tile(b, codes, dtype));
    return std::vector<ValueId>{};
  });
  return writer.finish(ceil_div(elements, kChunk), kChunk / 8);
}

}  // namespace

HeadRows code_words(const AttentionProblem& problem, BufferArgument codes, const Dim& rows,
                    int64_t depth) {
  const int64_t words = problem.cache_width(depth) / 4;
  const Dim head = rows * words;
  return {codes, {problem.attention.kv_heads * head, head, Dim(words), 1}};
}

PlacedOperands placed_operands(const ir::Graph& graph, const ir::Node& node,
                               const AttentionProblem& problem, const HeadTiles& tiles,
                               const Dim& reads_numbers, Lowered& lowered) {
  return Placing(graph, node, problem, tiles, DType::kUndefined, reads_numbers, lowered).run();
}

AttentionOperands widened_operands(const ir::Graph& graph, const ir::Node& node,
                                   const AttentionProblem& problem, const HeadTiles& tiles,
                                   Lowered& lowered) {
  AttentionOperands operands =
      Placing(graph, node, problem, tiles, DType::kF32, Dim(1), lowered).run().numbers;
  const auto widen = [&](HeadRows& rows, ir::ValueId fresh) {
    const DType dtype = graph.value(fresh).dtype;
    if (dtype == DType::kF32 || problem.attention.has_codes()) return;
    const bool is_given = rows.buffer.kind == BufferArgument::Kind::kValue && !problem.has_past();
    const Dim elements =
        is_given ? element_count(*graph.value(fresh).shape) : problem.batch * rows.strides.batch;
    const BufferArgument f32 = lowered.add_scratch(elements * 4);
    lowered.launches.push_back(convert_launch(dtype, rows.buffer, f32, elements));
    rows.buffer = f32;
  };
  widen(operands.keys, problem.attention.k);
  widen(operands.values, problem.attention.v);
  return operands;
}

}  // namespace tenon::kernels
