#include "kernels/llvm/attention/flash_decode_partials.h"

#include <algorithm>

#include "kernels/llvm/attention/flash_decode_scores.h"
#include "kernels/planning/views.h"

namespace tenon::kernels {

using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

namespace {

constexpr int kRows = FlashDecodeConfig::kRows;
constexpr double kMinusInfinity = FlashDecodeScores::kHidden;

}  // namespace

Tile spread(codegen::Builder& b, Tile rows, int columns) {
  const int count = b.type(rows).shape[0];
  return b.broadcast(b.reshape(rows, {count, 1}), {count, columns});
}

Tile base_of(codegen::Builder& b, Tile maximum) {
  const std::vector<int> shape = b.type(maximum).shape;
  const auto f32 = [&](double value) { return b.constant(DType::kF32, value, shape); };
  const Tile none = b.compare(Fn::kEqual, maximum, f32(kMinusInfinity));
  return b.select(none, f32(0), maximum);
}

FlashDecodePartials::FlashDecodePartials(LaunchWriter& writer, const ir::Graph& graph,
                                         const AttentionProblem& problem,
                                         const FlashDecodeConfig& config, const Dim& count,
                                         Lowered& lowered)
    : writer_(writer),
      b_(writer.builder),
      problem_(problem),
      config_(config),
      group_(static_cast<int>(problem.group())),
      most_queries_(config.kept_rows / group_),
      count_(count),
      outputs_(buffer("outputs", columns(), graph, lowered)),
      maxima_(buffer("maxima", 1, graph, lowered)),
      totals_(buffer("totals", 1, graph, lowered)) {}

// Shares of queries that are there before the launch need not wait for the one before it to meet:
// where they do is theirs alone.
ValueId FlashDecodePartials::buffer(const char* name, int columns, const ir::Graph& graph,
                                    Lowered& lowered) {
  lowered.scratch.emplace_back(config_.partial_bytes(problem_, count_, columns),
                               caller_brings(graph, problem_.attention.q));
  return writer_.buffer(name, DType::kF32,
                        BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1));
}

Tile FlashDecodePartials::f32(double value, std::vector<int> shape) {
  return b_.constant(DType::kF32, value, std::move(shape));
}

void FlashDecodePartials::for_queries(const std::function<void(ValueId)>& body) {
  if (most_queries_ == 1) return body(b_.index(0));
  b_.loop({b_.index(0), dim(problem_.queries), b_.index(1)}, {}, [&](ValueId query, auto) {
    body(query);
    return std::vector<ValueId>{};
  });
}

// Of a query among the rows of all partial results; those of all of them lie together.
ValueId FlashDecodePartials::first_row(ValueId query, ValueId partial) {
  const ValueId of_query = b_.add(b_.mul(head_number_, b_.index(most_queries_)), query);
  return b_.mul({b_.add(b_.mul(of_query, dim(count_)), partial), b_.index(group_)});
}

// What `part(warp)` gives of each warp, put together.
Tile FlashDecodePartials::over_warps(Fn fn, const std::function<Tile(int)>& part) {
  Tile all = part(0);
  for (int warp = 1; warp < config_.warps; ++warp) all = b_.binary(fn, all, part(warp));
  return all;
}

// Maxima of the warps are brought to a common one; everything is weighted by what that changes.
void FlashDecodePartials::store_warps(ValueId partial, const std::vector<Tile>& ends) {
  const int all_rows = config_.rows();
  const ValueId maxima = b_.alloc(DType::kF32, all_rows);
  const ValueId totals = b_.alloc(DType::kF32, all_rows);
  b_.store({maxima, b_.index(0)}, ends[0]);
  const Tile top = over_warps(Fn::kMax, [&](int warp) {
    const ValueId at = b_.index(warp * kRows);
    const Tile rows = b_.load({maxima, at, {b_.index(0), b_.index(1)}, {}}, {config_.warps, kRows});
    return b_.reshape(rows, {all_rows});
  });
  const Tile weight = exp2(b_.sub(ends[0], base_of(b_, top)));
  b_.store({{totals, b_.index(0)}, b_.mul(ends[1], weight)});
  store_outputs(partial, std::span(ends).subspan(2), weight);
  for_queries([&](ValueId query) {
    const auto rows_of = [&](ValueId room) {
      return [this, room, query](int warp) {
        const ValueId row = b_.add({b_.index(warp * kRows), b_.mul(query, b_.index(group_))});
        return b_.load({room, row}, {group_});
      };
    };
    b_.store({{maxima_, first_row(query, partial)}, over_warps(Fn::kMax, rows_of(maxima))});
    b_.store({{totals_, first_row(query, partial)}, over_warps(Fn::kAdd, rows_of(totals))});
  });
}

// Some boxes at once, in shared memory [box][warp][row][column].
void FlashDecodePartials::store_outputs(ValueId partial, std::span<const Tile> outputs,
                                        Tile weight) {
  const int of_warp = config_.kept_rows * config_.columns, of_box = config_.warps * of_warp;
  const ValueId room = b_.alloc(DType::kF32, config_.merged_elements());
  const auto merged = static_cast<size_t>(config_.merged_boxes());
  for (size_t first = 0; first < outputs.size(); first += merged) {
    const size_t last = std::min(outputs.size(), first + merged);
    for (size_t box = first; box < last; ++box) {
      const Tile weighted = b_.mul(outputs[box], spread(b_, weight, config_.columns));
      b_.store({{room,
                 b_.index(static_cast<int64_t>(box - first) * of_box),
                 {b_.index(of_warp), b_.index(1)},
                 {kNone, b_.index(of_warp)}},
                b_.reshape(weighted, {config_.warps, kRows * config_.columns})});
    }
    for_queries([&](ValueId query) {
      for (size_t box = first; box < last; ++box) {
        const Tile rows = over_warps(Fn::kAdd, [&](int warp) {
          const auto begin = static_cast<int64_t>(box - first) * of_box + warp * of_warp;
          const ValueId row = b_.mul(query, b_.index(int64_t{group_} * config_.columns));
          return b_.load({room, b_.add(b_.index(begin), row)}, {group_, config_.columns});
        });
        const ValueId width = b_.index(columns());
        const ValueId at = b_.add({b_.mul(first_row(query, partial), width),
                                   b_.index(static_cast<int64_t>(box) * config_.columns)});
        b_.store({outputs_, at, {width, b_.index(1)}, {}}, rows);
      }
    });
  }
}

void FlashDecodePartials::store(ValueId partial, Tile maxima, Tile totals, Tile outputs) {
  const ValueId row = first_row(b_.index(0), partial);
  b_.store({maxima_, row}, maxima);
  b_.store({totals_, row}, totals);
  b_.store({outputs_, b_.mul(row, b_.index(columns()))}, outputs);
}

// As many loads are on their way.
int FlashDecodePartials::merged_at_once() const {
  constexpr int kMostRegisters = 64, kMost = 16;
  const int registers = std::max(1, group_ * columns() / config_.threads());
  return std::clamp(kMostRegisters / registers, 1, kMost);
}

std::pair<Tile, Tile> FlashDecodePartials::merged(ValueId query, Tile sinks) {
  const std::vector<int> shape = {group_, columns()};
  const int count = merged_at_once();
  const Tile top = sinks == kNone ? f32(kMinusInfinity, shape) : sinks;
  const Tile total = f32(sinks == kNone ? 0 : 1, shape);
  const codegen::Range all{b_.index(0), dim(count_), b_.index(count)};
  const std::vector<ValueId> merged = b_.loop(
      all, {top, total, f32(0, shape)}, [&](ValueId partial, std::span<const ValueId> before) {
        return add_partials(query, partial, count, before);
      });
  return {merged[1], merged[2]};
}

std::vector<ValueId> FlashDecodePartials::add_partials(ValueId query, ValueId first, int count,
                                                       std::span<const ValueId> before) {
  const std::vector<int> shape = {group_, columns()};
  std::vector<Tile> maxima, totals, outputs;
  for (int i = 0; i < count; ++i) {
    const ValueId partial = b_.add(first, b_.index(i));
    const ValueId row = first_row(query, partial), zero = b_.index(0), one = b_.index(1);
    const ValueId left = b_.mul({b_.sub(dim(count_), partial), b_.index(group_)});
    const ValueId at = b_.mul(row, b_.index(columns()));
    maxima.push_back(b_.load({maxima_, row, {one, zero}, {left, kNone}}, shape, kMinusInfinity));
    totals.push_back(b_.load({totals_, row, {one, zero}, {left, kNone}}, shape));
    outputs.push_back(b_.load({outputs_, at, {}, {left, kNone}}, shape));
  }
  Tile highest = before[0];
  for (const Tile maximum : maxima) highest = b_.max(highest, maximum);
  const Tile base = base_of(b_, highest), correction = exp2(b_.sub(before[0], base));
  Tile total = b_.mul(before[1], correction), sum = b_.mul(before[2], correction);
  for (size_t i = 0; i < maxima.size(); ++i) {
    const Tile weight = exp2(b_.sub(maxima[i], base));
    total = b_.fma(totals[i], weight, total);
    sum = b_.fma(outputs[i], weight, sum);
  }
  return {highest, total, sum};
}

}  // namespace tenon::kernels
