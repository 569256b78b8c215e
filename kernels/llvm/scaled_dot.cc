#include "kernels/llvm/scaled_dot.h"

#include <array>

#include "kernels/llvm/scaled_dot/byte_weight.h"
#include "kernels/llvm/scaled_dot/dense_rows.h"
#include "kernels/llvm/scaled_dot/gemm.h"
#include "kernels/llvm/scaled_dot/gemm_int8.h"
#include "kernels/llvm/scaled_dot/gemm_int8_pairs.h"
#include "kernels/llvm/scaled_dot/gemm_tiles.h"
#include "kernels/llvm/scaled_dot/gemv.h"
#include "kernels/llvm/scaled_dot/gemv_digits.h"
#include "kernels/llvm/scaled_dot/gemv_int8.h"
#include "kernels/llvm/scaled_dot/packed_weight.h"
#include "kernels/llvm/scaled_dot/runtime_panel.h"
#include "kernels/llvm/scaled_dot/weight_source.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

// Rough nanoseconds for one multiply-add of bytes and for one dequantised weight.
constexpr double kNsPerInt8Mac = 0.007, kNsPerTileMac = 0.001, kNsPerCode = 0.08;

Support supports_any(const ir::Graph& graph, const ir::Node& node,
                     const DescribedScaledDot& described) {
  if (!described.support) return described.support;
  const ScaledDotProblem& problem = described.problem;
  const bool integer =
      problem.y_type == DType::kI32 && is_byte(problem.a_type) && is_byte(problem.b_type);
  if (problem.y_type != DType::kF32 && problem.y_type != DType::kF16 &&
      problem.y_type != DType::kBF16 && !integer) {
    return Support::no("the output is not f32, f16 or bf16 but " +
                       std::string(name(problem.y_type)));
  }
  if (Support rows = supports_dense_rows(graph, problem); !rows) return rows;
  return Epilogue::supports(graph, node, problem);
}

// 1 where there is exactly one row, 0 otherwise: picks a launch by giving it tasks.
Dim is_one(const Dim& rows) { return max(Dim(0), min(Dim(1), 2 - rows)) * min(rows, 1); }

// Rows that fill enough of a tile.
constexpr int64_t kFewestTiledRows = 16;

// 1 where there are as many, else 0.
Dim is_many(const Dim& rows) { return min(Dim(1), max(Dim(0), rows - Dim(kFewestTiledRows - 1))); }

// `rows` and `columns`: of the tile.
ProductWork work_of(const ScaledDotProblem& problem, const Dim& all_rows, int rows, int columns) {
  return {all_rows, 2 * all_rows * problem.n * problem.k, rows, columns};
}

// What the kernel of a range of rows is expected to take: `ns_per_mac` of one core for a
// multiply-add, at as many rows as RangePlan says.
RangePlan range_of(const RowRange& rows, Skeleton skeleton, int tile_rows, int tile_columns,
                   const ScaledDotProblem& problem, double ns_per_mac,
                   const codegen::HostTarget& host) {
  PlannedKernel kernel{{skeleton, {{Knob::kTileM, tile_rows}, {Knob::kTileN, tile_columns}}}};
  const Dim macs = problem.n * problem.k;
  if (macs.is_constant()) {
    const int64_t told = rows.last == RowRange::kNoLimit ? std::max<int64_t>(1, rows.first)
                                                         : std::max<int64_t>(1, rows.last);
    kernel.microseconds = static_cast<double>(macs.value()) * static_cast<double>(told) *
                          ns_per_mac / (1e3 * std::max(1, host.threads));
  }
  return {rows, {std::move(kernel)}};
}

struct WeightBuffers {
  BufferArgument elements, scales, zeros;
};

WeightBuffers keep(Lowered& lowered, PackedWeight packed) {
  const auto add = [&](PackedConstant constant) {
    lowered.packed.push_back(std::move(constant));
    return BufferArgument::packed(static_cast<int32_t>(lowered.packed.size()) - 1);
  };
  WeightBuffers buffers;
  buffers.elements = add(std::move(packed.elements));
  if (packed.scales.bytes > 0) buffers.scales = add(std::move(packed.scales));
  if (packed.zeros.bytes > 0) buffers.zeros = add(std::move(packed.zeros));
  return buffers;
}

// The reader's scales and zero points; its elements are whoever's who reads them.
WeightReader declare_scales(LaunchWriter& writer, const WeightLayout& layout,
                            const WeightBuffers& buffers) {
  WeightReader reader{layout, kNone, kNone, kNone};
  if (layout.scale_type != DType::kUndefined) {
    reader.scales = writer.buffer("scales", storage_type(layout.scale_type), buffers.scales);
  }
  if (layout.zero_type != DType::kUndefined) {
    reader.zeros = writer.buffer("zeros", layout.zero_type, buffers.zeros);
  }
  return reader;
}

WeightReader declare_weight(LaunchWriter& writer, const WeightLayout& layout,
                            const WeightBuffers& buffers) {
  const ValueId elements = writer.buffer("weight", layout.word_type(), buffers.elements);
  WeightReader reader = declare_scales(writer, layout, buffers);
  reader.elements = elements;
  return reader;
}

// Dequantises and scales rows [first, first + count) of a panel into scratch.
Panel dequantize_panel(Builder& b, const WeightReader& weight, const GemmPlan& plan,
                       const GemmTask& task, ValueId first, ValueId count, ValueId scratch) {
  const WeightLayout& layout = weight.layout;
  const int columns = layout.columns, per_word = layout.per_word();
  const int64_t unit = std::min(layout.block, plan.k_block);  // both start on whole units
  b.loop({b.index(0), count, b.index(unit)}, {}, [&](ValueId at, auto) {
    const ValueId block = b.div({b.add(first, at), b.index(layout.block)});
    const bool scaled = layout.scale_type != DType::kUndefined;
    const Tile scale = scaled ? weight.load_scale(b, task.panel, block) : kNone;
    const bool shifted = layout.zero_type != DType::kUndefined;
    const Tile zero = shifted ? weight.load_zero(b, task.panel, block) : kNone;
    // A last block of K shorter than the unit ends with `count`.
    const ValueId end = b.min(b.add(at, b.index(unit)), count);
    b.loop(at, end, b.index(per_word), {}, [&](ValueId k, auto) {
      const Tile words =
          weight.load_words(b, task.panel, b.div({b.add(first, k), b.index(per_word)}));
      for (int j = 0; j < per_word; ++j) {
        Tile value = weight.dequantize(b, words, j);
        if (shifted) value = b.sub(value, zero);
        if (scaled) value = b.mul(value, scale);
        b.store({scratch, b.mul({b.add(k, b.index(j)), b.index(columns)}), {}, {}}, value);
      }
      return std::vector<ValueId>{};
    });
    return std::vector<ValueId>{};
  });
  return {scratch, b.index(0)};
}

Launch gemm_launch(const ir::Graph& graph, const ir::Node& node, const ScaledDotProblem& problem,
                   const GemmPlan& plan, BufferArgument a, const WeightLayout& layout,
                   const WeightBuffers& buffers, Lowered& lowered) {
  LaunchWriter writer("dot_rows");
  GemmHooks hooks;
  hooks.a = writer.buffer("a", DType::kF32, a);
  const WeightReader weight = declare_weight(writer, layout, buffers);
  Epilogue epilogue(writer, graph, node, problem, {layout.columns}, lowered);
  declare_gemm(writer, plan);
  Builder& b = writer.builder;
  hooks.a_offset = [&](const GemmTask&) { return b.index(0); };
  const auto stored = [&](const GemmTask& task, ValueId first) {
    const ValueId row = b.add(b.mul(task.panel, b.index(layout.k)), first);
    return Panel{weight.elements, b.mul(row, b.index(layout.columns))};
  };
  hooks.panel = [&](const GemmTask& task, ValueId first, ValueId count, ValueId scratch) {
    if (layout.plain()) return stored(task, first);
    return dequantize_panel(b, weight, plan, task, first, count, scratch);
  };
  if (layout.is_half()) hooks.stored_panel = stored;
  emit_gemm(writer, plan, hooks, epilogue);
  const double per_row =
      plan.ns_per_mac * static_cast<double>(layout.k * layout.columns * plan.group);
  Launch launch = writer.finish(plan.tasks(),
                                min(plan.rows, plan.row_block) * static_cast<int64_t>(per_row + 1));
  launch.product = work_of(problem, problem.rows, plan.tile.heights.front(), layout.columns);
  return launch;
}

Launch gemv_launch(const ir::Graph& graph, const ir::Node& node, const ScaledDotProblem& problem,
                   BufferArgument a, const WeightLayout& layout, const WeightBuffers& buffers,
                   Lowered& lowered) {
  LaunchWriter writer("dot_row");
  const ValueId a_buffer = writer.buffer("a", DType::kF32, a);
  const WeightReader weight = declare_weight(writer, layout, buffers);
  Epilogue epilogue(writer, graph, node, problem, {layout.columns}, lowered);
  emit_gemv(writer, weight, a_buffer, epilogue);
  const double cost = kNsPerCode * static_cast<double>(layout.k * layout.columns);
  Launch launch =
      writer.finish(layout.panels * is_one(problem.rows), static_cast<int64_t>(cost + 1));
  launch.product = work_of(problem, problem.rows, 1, layout.columns);
  return launch;
}

Launch digits_launch(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                     const ScaledDotProblem& problem, BufferArgument a, const WeightLayout& layout,
                     const WeightBuffers& weights, Lowered& lowered) {
  const DType type = int8_code_type(settings.host);
  const Dim one = is_one(problem.rows);
  const double worth = int8_byte_scale(layout.element);
  const DigitRow row =
      digit_row(problem, a, one, int8_unit(layout), layout.bits == 4, type, worth, lowered);
  LaunchWriter writer("dot_row_digits");
  DigitBuffers buffers;
  buffers.a = writer.buffer("a", DType::kF32, a);
  buffers.digits = writer.buffer("digits", type, row.digits);
  buffers.scales = writer.buffer("row_scales", DType::kF32, row.scales);
  buffers.weight_bytes = writer.buffer("weight_bytes", DType::kU8, weights.elements);
  const WeightReader weight = declare_weight(writer, layout, weights);
  Epilogue epilogue(writer, graph, node, problem, {layout.columns}, lowered);
  emit_gemv_digits(writer, weight, buffers, epilogue);
  const double cost = kNsPerCode * static_cast<double>(layout.k * layout.columns);
  Launch launch = writer.finish(layout.panels * one, static_cast<int64_t>(cost + 1));
  launch.product = work_of(problem, problem.rows, 1, layout.columns);
  return launch;
}

// Exact products of several rows, or of any number unless a kernel for one row stands beside them.
void add_exact_rows(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                    const ScaledDotProblem& problem, BufferArgument a, const WeightLayout& layout,
                    const WeightBuffers& buffers, bool one_row_kernel, Lowered& lowered) {
  GemmPlan plan = plan_gemm(problem, settings.host);
  plan.rows = problem.rows;
  const Dim several = 1 - is_one(problem.rows);
  BufferArgument rows = a;
  const bool aliases = !(row_distance(problem) == problem.k);
  // Where one row takes this kernel too, its rows must lie where they are.
  const bool may_spread = one_row_kernel || several.is(1);
  if (aliases && can_interleave(plan)) {
    plan.interleave = plan.tile.heights.front();
    const Dim wanted = one_row_kernel ? several : Dim(1);
    rows = interleave_rows(problem, a, plan.interleave, wanted, lowered);
  } else if (aliases && may_spread) {
    plan.row_distance = row_distance(problem);
    rows = spread_rows(problem, a, several, lowered);
  }
  Launch launch = gemm_launch(graph, node, problem, plan, rows, layout, buffers, lowered);
  if (one_row_kernel) launch.tasks = launch.tasks * several;
  lowered.launches.push_back(std::move(launch));
}

Lowered lower_constant(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                       const ScaledDotProblem& problem, const WeightLayout& layout) {
  Lowered lowered;
  const BufferArgument a = dense_rows(graph, problem, lowered);
  const WeightBuffers buffers = keep(lowered, pack_weight(graph, problem, layout));
  const Dim one = is_one(problem.rows), several = 1 - one;
  const bool one_row_kernel = !one.is(0);
  if (one_row_kernel) {
    const bool digits = !layout.plain() && supports_digits(graph, problem, layout, settings.host);
    lowered.launches.push_back(
        digits ? digits_launch(graph, node, settings, problem, a, layout, buffers, lowered)
               : gemv_launch(graph, node, problem, a, layout, buffers, lowered));
  }
  if (!one_row_kernel || !several.is(0)) {
    add_exact_rows(graph, node, settings, problem, a, layout, buffers, one_row_kernel, lowered);
  }
  replace_weight(problem, lowered);
  return lowered;
}

// One row, and more of them.
Plan plan_constant(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                   const ScaledDotProblem& problem, const WeightLayout& layout) {
  const GemmPlan gemm = plan_gemm(problem, settings.host);
  return {
      {range_of({0, 1}, Skeleton::kHostGemv, 1, layout.columns, problem, kNsPerCode, settings.host),
       range_of({2}, Skeleton::kHostGemm, gemm.tile.heights.front(), layout.columns, problem,
                gemm.ns_per_mac, settings.host)},
      [&graph, &node, &settings, problem, layout] {
        return lower_constant(graph, node, settings, problem, layout);
      },
      problem.rows};
}

// A constant matrix of numbers that are multiplied as floats.
Support supports_constant(const ir::Graph& graph, const ir::Node& node,
                          const DescribedScaledDot& described) {
  if (Support answer = supports_any(graph, node, described); !answer) return answer;
  if (!described.problem.b_constant) return Support::no("the weight is not a constant matrix");
  if (described.problem.y_type == DType::kI32) return Support::no("int32 output is not supported");
  return Support::yes();
}

Planned plan_packed(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_constant(graph, node, described); !answer) return answer;
  const int columns = MicroTile::for_host(settings.host).columns;
  const auto weight = packed_layout(graph, described.problem, columns);
  if (!weight.support) return weight.support;
  return plan_constant(graph, node, settings, described.problem, weight.layout);
}

// One kernel over the rows' bytes: `emit` writes it, `tasks` and `cost` say how much there is to
// do.
struct Int8Launch {
  const char* name;
  std::function<void(LaunchWriter&, const WeightReader&, const Int8Buffers&, Epilogue&)> emit;
  DType code_type;  // of the rows
  Dim tasks, cost;
  int tile_rows;
};

// `wanted`: 1 where the rows are these launches'.
void add_int8_launches(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                       const ScaledDotProblem& problem, BufferArgument a,
                       const WeightLayout& layout, const WeightBuffers& weights, const Dim& wanted,
                       Lowered& lowered) {
  const int columns = layout.columns;
  const bool pairs = multiplies_row_pairs(settings.host);
  GemmPlan plan = plan_gemm(problem, settings.host);
  plan = pairs ? plan_gemm_int8_pairs(plan, layout) : plan_gemm_int8(plan, layout, settings.host);
  plan.rows = problem.rows;
  plan.group = 1;
  const DType code_type = int8_code_type(settings.host);
  const Int8Units cut{int8_unit(layout), int8_units_per_scale(layout)};
  const Int8Rows rows = int8_rows(problem, a, cut, {layout.bits == 4, pairs}, code_type, lowered);
  lowered.launches.back().tasks = lowered.launches.back().tasks * wanted;
  const auto add = [&](const Int8Launch& launch) {
    LaunchWriter writer(launch.name);
    Int8Buffers buffers;
    buffers.codes = writer.buffer("codes", launch.code_type, rows.codes);
    buffers.unsigned_weight = launch.code_type != code_type;
    buffers.scales = writer.buffer("row_scales", DType::kF32, rows.scales);
    buffers.sums = writer.buffer("row_sums", DType::kF32, rows.sums);
    buffers.weight_bytes = writer.buffer("weight", DType::kU8, weights.elements);
    const WeightReader weight = declare_scales(writer, layout, weights);
    Epilogue epilogue(writer, graph, node, problem, {columns}, lowered);
    launch.emit(writer, weight, buffers, epilogue);
    lowered.launches.push_back(writer.finish(launch.tasks, launch.cost));
    lowered.launches.back().product = work_of(problem, problem.rows, launch.tile_rows, columns);
  };

  const double codes = static_cast<double>(layout.k * columns);
  const auto dequantizing = static_cast<int64_t>(kNsPerCode / 2 * codes);
  const Dim one = is_one(problem.rows), several = wanted - one;
  if (!one.is(0)) {
    add({"dot_row_int8", emit_gemv_int8, DType::kI8, layout.panels * one, dequantizing + 1, 1});
  }
  if (!several.is(0)) {
    const auto emit = [&](LaunchWriter& writer, const WeightReader& weight,
                          const Int8Buffers& buffers, Epilogue& epilogue) {
      declare_gemm(writer, plan);
      const auto emit_rows = pairs ? emit_gemm_int8_pairs : emit_gemm_int8;
      emit_rows(writer, plan, weight, buffers, epilogue);
    };
    const auto per_row = static_cast<int64_t>(kNsPerInt8Mac * codes + 1);
    add({"dot_int8", emit, code_type, plan.tasks() * several,
         min(plan.rows, plan.row_block) * per_row + dequantizing, plan.tile.heights.front()});
  }
}

void add_tile_launches(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                       const ScaledDotProblem& problem, BufferArgument a,
                       const WeightLayout& layout, const WeightBuffers& weights, const Dim& wanted,
                       Lowered& lowered) {
  const TilePlan plan = plan_gemm_tiles(problem.rows, layout, settings.host);
  const BufferArgument rows = tile_rows(problem.rows, layout.k, a, wanted, lowered);
  LaunchWriter writer("dot_tiles");
  const ValueId tiles = writer.buffer("tiles", DType::kBF16, rows);
  const WeightReader weight = declare_weight(writer, layout, weights);
  Epilogue epilogue(writer, graph, node, problem, {layout.columns}, lowered);
  declare_gemm_tiles(writer, plan);
  emit_gemm_tiles(writer, plan, weight, tiles, epilogue);
  const double codes = static_cast<double>(layout.k * layout.columns);
  const auto per_row = static_cast<int64_t>(kNsPerTileMac * codes + 1);
  const auto dequantizing = static_cast<int64_t>(kNsPerCode / 2 * codes);
  Launch launch = writer.finish(plan.tasks(layout) * wanted,
                                min(plan.rows, plan.row_block) * per_row + dequantizing);
  launch.product = work_of(problem, problem.rows, kTileRows, layout.columns);
  lowered.launches.push_back(std::move(launch));
}

// Who multiplies which rows.
struct Int8Ranges {
  bool by_bytes;  // several rows, too
  Dim many, few;  // 1 where the rows are those of tiles; of products of bytes

  Int8Ranges(const ScaledDotProblem& problem, const WeightLayout& layout,
             const codegen::HostTarget& host)
      : by_bytes(has_byte_products(host)),
        many(supports_tiles(layout, host) ? is_many(problem.rows) : Dim(0)),
        few(by_bytes ? 1 - many : is_one(problem.rows)) {}
};

Lowered lower_int8(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                   const ScaledDotProblem& problem, const WeightLayout& layout) {
  Lowered lowered;
  const BufferArgument a = dense_rows(graph, problem, lowered);
  const WeightBuffers weights = keep(lowered, pack_weight(graph, problem, layout));
  const auto [by_bytes, many, few] = Int8Ranges(problem, layout, settings.host);
  if (!few.is(0)) {
    add_int8_launches(graph, node, settings, problem, a, layout, weights, few, lowered);
  }
  if (!by_bytes && !few.is(1)) {
    const bool one_row_kernel = !few.is(0);
    add_exact_rows(graph, node, settings, problem, a, layout, weights, one_row_kernel, lowered);
    lowered.launches.back().tasks = lowered.launches.back().tasks * (1 - many);
  }
  if (!many.is(0)) {
    add_tile_launches(graph, node, settings, problem, a, layout, weights, many, lowered);
  }
  replace_weight(problem, lowered);
  return lowered;
}

std::vector<RangePlan> int8_ranges(const ScaledDotProblem& problem, const WeightLayout& layout,
                                   const codegen::HostTarget& host) {
  const Int8Ranges who(problem, layout, host);
  const GemmPlan gemm = plan_gemm(problem, host);
  const int64_t most_few = who.many.is(0) ? RowRange::kNoLimit : kFewestTiledRows - 1;
  const auto range = [&](const RowRange& rows, Skeleton skeleton, int tile_rows, double ns) {
    return range_of(rows, skeleton, tile_rows, layout.columns, problem, ns, host);
  };
  std::vector<RangePlan> ranges = {range({0, 1}, Skeleton::kHostGemvInt8, 1, kNsPerCode / 2)};
  ranges.push_back(
      who.by_bytes
          ? range({2, most_few}, Skeleton::kHostGemmInt8, gemm.tile.heights.front(), kNsPerInt8Mac)
          : range({2, most_few}, Skeleton::kHostGemm, gemm.tile.heights.front(), gemm.ns_per_mac));
  if (!who.many.is(0)) {
    ranges.push_back(range({kFewestTiledRows}, Skeleton::kHostGemmTiles,
                           static_cast<int>(kTileRows), kNsPerTileMac));
  }
  return ranges;
}

Planned plan_int8(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (!described.support) return described.support;
  const ScaledDotProblem& problem = described.problem;
  if (settings.precision != Precision::kInt8 && problem.dot.accuracy_level != 4) {
    return Planned::no("int8 activations need precision_mode=int8 or accuracy_level=4");
  }
  if (Support answer = supports_constant(graph, node, described); !answer) return answer;
  const auto weight = packed_layout(graph, problem, MicroTile::for_host(settings.host).columns);
  if (!weight.support) return weight.support;
  // A unit's sum is scaled before its row's scale makes it small again.
  if (has_huge_scale(graph, problem)) return Planned::no("a scale is 2^100 or more");
  if (Support answer = supports_int8(weight.layout, settings.host); !answer) return answer;
  return Plan{int8_ranges(problem, weight.layout, settings.host),
              [&graph, &node, &settings, problem, layout = weight.layout] {
                return lower_int8(graph, node, settings, problem, layout);
              },
              problem.rows};
}

Planned plan_plain(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_constant(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (bit_width(problem.b_type) == 0 || bit_width(problem.b_type) == 64) {
    return Planned::no(std::string(name(problem.b_type)) + " weights are not exact in f32");
  }
  if (Support answer = has_constant_scales(graph, problem); !answer) return answer;
  const int columns = MicroTile::for_host(settings.host).columns;
  return plan_constant(graph, node, settings, problem, plain_layout(problem, columns));
}

Lowered lower_runtime(const ir::Graph& graph, const ir::Node& node, const ScaledDotProblem& problem,
                      GemmPlan plan) {
  Lowered lowered;
  const BufferArgument a = dense_rows(graph, problem, lowered);
  plan.batches = element_count(problem.batch);
  plan.integer = problem.y_type == DType::kI32;
  plan.rows = problem.m;
  plan.group = 1;

  LaunchWriter writer("dot_runtime");
  GemmHooks hooks;
  hooks.a = writer.buffer("a", DType::kF32, a);
  RuntimePanel panel(writer, graph, problem);
  Epilogue epilogue(writer, graph, node, problem, {plan.tile.columns}, lowered);
  declare_gemm(writer, plan);
  hooks.a_offset = [&](const GemmTask& task) { return panel.a_offset(task.batch); };
  hooks.panel = [&](const GemmTask& task, ValueId first, ValueId count, ValueId scratch) {
    return panel.read(task, first, count, scratch, plan.tile.columns);
  };
  panel.begin();
  emit_gemm(writer, plan, hooks, epilogue);
  const Dim macs = min(plan.rows, plan.row_block) * plan.k * plan.tile.columns;
  lowered.launches.push_back(
      writer.finish(plan.tasks(), ceil_div(macs, static_cast<int64_t>(1 / plan.ns_per_mac))));
  lowered.launches.back().product =
      work_of(problem, plan.batches * plan.rows, plan.tile.heights.front(), plan.tile.columns);
  return lowered;
}

Planned plan_runtime(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  const DescribedScaledDot described = describe_scaled_dot(graph, node);
  if (Support answer = supports_any(graph, node, described); !answer) return answer;
  const ScaledDotProblem& problem = described.problem;
  if (Support answer = supports_runtime_panel(graph, problem); !answer) return answer;
  const GemmPlan gemm = plan_gemm(problem, settings.host);
  return Plan{{range_of({}, Skeleton::kHostGemm, gemm.tile.heights.front(), gemm.tile.columns,
                        problem, gemm.ns_per_mac, settings.host)},
              [&graph, &node, problem, gemm] { return lower_runtime(graph, node, problem, gemm); },
              problem.rows};
}

}  // namespace

std::span<const Candidate> scaled_dot_candidates() {
  static constexpr std::array<Candidate, 4> table = {{
      {"int8", plan_int8},
      {"packed", plan_packed},
      {"plain", plan_plain},
      {"runtime", plan_runtime},
  }};
  return table;
}

}  // namespace tenon::kernels
