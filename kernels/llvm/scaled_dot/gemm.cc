#include "kernels/llvm/scaled_dot/gemm.h"

#include <algorithm>

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kMostPanels = 8;
constexpr int64_t kStreamedTiles = 4;  // of rows: see panels_at_once
// Sums are read and written once per block: longer blocks as far as a panel's share fits L1.
constexpr int64_t kKBlock = 192, kNeonKBlock = 512;

int64_t target_k_block(const ScaledDotProblem& problem, const codegen::HostTarget& host) {
  const bool integer = problem.y_type == DType::kI32;  // see GemmPlan::integer
  return host.arch == codegen::HostArch::kAArch64 && !integer ? kNeonKBlock : kKBlock;
}

// The largest multiple of `unit` up to the target; a longer unit must be cut evenly.
int64_t choose_k_block(int64_t unit, int64_t target) {
  if (unit <= 0) return target;
  if (unit <= target) return target / unit * unit;
  for (int64_t size = target; size >= 8; size -= 8) {
    if (unit % size == 0) return size;
  }
  return unit;
}

// One block of K: rows of a from `a_offset` on, a panel, and the panel's sums from row `first_sum`
// on.
struct Block {
  ValueId a, a_offset, k, count;
  Panel panel;
  ValueId sums, first_sum;
};

// a[row, k] from the first row of a task; `row` begins a micro tile, `k` a trip.
ValueId row_offset(LaunchWriter& writer, const GemmPlan& plan, ValueId row, ValueId k) {
  Builder& b = writer.builder;
  const ValueId distance = writer.index(plan.row_distance);
  if (plan.interleave == 0) return b.add(b.mul(row, distance), k);
  const ValueId within = b.rem(row, b.index(plan.interleave));
  const ValueId first = b.mul(b.sub(row, within), distance);
  return b.add(first, b.mul(b.add(k, within), b.index(plan.interleave)));
}

// sums[row … row+height) += a x panel
void emit_micro_tile(LaunchWriter& writer, const GemmPlan& plan, int height, const Block& block,
                     ValueId row) {
  Builder& b = writer.builder;
  const int columns = plan.tile.columns, step = plan.tile.k_step;
  const bool interleaved = plan.interleave > 0;
  const ValueId distance = interleaved ? b.index(plan.interleave) : writer.index(plan.row_distance);
  const ValueId a_offset = b.add(block.a_offset, row_offset(writer, plan, row, block.k));
  const Panel& panel = block.panel;
  const ValueId sum_row = b.add(block.first_sum, row);
  const codegen::Access sums_at{block.sums, b.mul(sum_row, b.index(columns)), {}, {}};
  const auto trip = [&](ValueId at, ValueId acc, int ks) {
    const ValueId left_at = b.add(a_offset, interleaved ? b.mul(at, distance) : at);
    const ValueId left = b.load({block.a, left_at, {distance, b.index(1)}, {}}, {height, ks});
    const ValueId right = b.load(
        {panel.buffer, b.add(panel.offset, b.mul(at, b.index(columns))), {}, {}}, {ks, columns});
    const bool wide = b.type(right).dtype == DType::kF32;
    return b.dot(acc, left, wide ? right : b.cast(right, DType::kF32));
  };
  ValueId acc = b.load(sums_at, {height, columns});
  const bool whole = plan.k.is_constant() && plan.k.value() % step == 0 && plan.k_block % step == 0;
  const ValueId even =
      whole ? block.count : b.mul(b.div(block.count, b.index(step)), b.index(step));
  acc = b.loop(b.index(0), even, b.index(step), {acc}, [&](ValueId at, auto carried) {
    return std::vector<ValueId>{trip(at, carried[0], step)};
  })[0];
  if (!whole) {
    acc = b.loop(even, block.count, b.index(1), {acc}, [&](ValueId at, auto carried) {
      return std::vector<ValueId>{trip(at, carried[0], 1)};
    })[0];
  }
  b.store(sums_at, acc);
}

// The same for all rows of a task.
void emit_micro_tiles(LaunchWriter& writer, const GemmPlan& plan, const Block& block,
                      ValueId rows) {
  Builder& b = writer.builder;
  ValueId done = b.index(0);
  for (const int height : plan.tile.heights) {
    const ValueId tiles = b.div(b.sub(rows, done), b.index(height));
    const ValueId end = b.add(done, b.mul(tiles, b.index(height)));
    b.loop(done, end, b.index(height), {}, [&](ValueId row, auto) {
      emit_micro_tile(writer, plan, height, block, row);
      return std::vector<ValueId>{};
    });
    done = end;
  }
}

// Rows of one task when all have about as many: a short last one would leave cores idle.
ValueId even_row_block(Builder& b, const GemmPlan& plan, ValueId rows, ValueId blocks) {
  const ValueId tallest = b.index(plan.tile.heights.front());
  const ValueId tiles = b.div(b.add(rows, b.sub(tallest, b.index(1))), tallest);
  return b.mul(b.div(b.add(tiles, b.sub(blocks, b.index(1))), blocks), tallest);
}

// How many of a task's panels take a block of K before the next block begins: all, so that they
// share what is read of a. Few micro tiles wait for the panel, not for a: then each is read from
// end to end, as memory gives it fastest.
ValueId panels_at_once(Builder& b, const GemmPlan& plan, ValueId rows, ValueId panels) {
  if (plan.group == 1 || !plan.streams_few_rows) return panels;
  const int64_t few = kStreamedTiles * plan.tile.heights.front();
  const ValueId more = b.div(b.sub(rows, b.index(1)), b.index(few));
  return b.max(b.index(1), b.min(b.mul(more, panels), panels));
}

// totals += sums, sums = 0
void add_to_totals(Builder& b, int columns, ValueId rows, ValueId sums, ValueId totals) {
  b.loop(b.index(0), rows, b.index(1), {}, [&](ValueId row, auto) {
    const codegen::Access at{sums, b.mul(row, b.index(columns))};
    const codegen::Access total_at{totals, at.offset};
    const ValueId block = b.cast(b.load(at, {columns}), DType::kI32);
    b.store(total_at, b.add(b.load(total_at, {columns}), block));
    b.store(at, b.constant(DType::kF32, 0, {columns}));
    return std::vector<ValueId>{};
  });
}

}  // namespace

GemmPlan plan_gemm(const ScaledDotProblem& problem, const codegen::HostTarget& host) {
  GemmPlan plan;
  plan.tile = MicroTile::for_host(host);
  plan.k_block = choose_k_block(problem.has_scale_b() ? problem.dot.scale_b.block : 0,
                                target_k_block(problem, host));
  plan.n = problem.n;
  plan.k = problem.k;
  plan.row_distance = problem.k;
  // 0.056 on a Neoverse-N1, which multiplies four floats at once, twice a cycle.
  plan.ns_per_mac = std::max(0.02, 0.22 / host.lanes_f32());
  plan.streams_few_rows = host.arch == codegen::HostArch::kAArch64;
  const int tallest = plan.tile.heights.front();
  plan.row_block = 192 / tallest * tallest;
  if (!problem.n.is_constant()) return plan;
  const int64_t panels = plan.panels().value();
  // Few panels: smaller blocks of rows keep all cores busy. Many: they share what is read of a.
  if (panels < 2 * host.threads) plan.row_block = 48 / tallest * tallest;
  plan.group = std::clamp<int64_t>(panels / (4 * host.threads), 1, kMostPanels);
  return plan;
}

bool can_interleave(const GemmPlan& plan) {
  const int64_t step = plan.tile.k_step;
  return plan.tile.heights.front() == step && plan.k.is_constant() && plan.k.value() % step == 0 &&
         plan.k_block % step == 0;
}

void declare_gemm(LaunchWriter& writer, const GemmPlan& plan) {
  for (const Dim& dim : {plan.rows, plan.n, plan.k, plan.row_distance, plan.panels(), plan.groups(),
                         ceil_div(plan.rows, plan.row_block)}) {
    writer.declare(dim);
  }
}

void emit_gemm(LaunchWriter& writer, const GemmPlan& plan, const GemmHooks& hooks,
               Epilogue& epilogue) {
  Builder& b = writer.builder;
  const int columns = plan.tile.columns;
  const ValueId groups = writer.index(plan.groups());
  const ValueId blocks = writer.index(ceil_div(plan.rows, plan.row_block));
  const ValueId block_number = b.div(b.task(), groups);
  const ValueId batch = b.div(block_number, blocks);
  const ValueId all_rows = writer.index(plan.rows);
  const ValueId even_rows = even_row_block(b, plan, all_rows, blocks);
  const ValueId first_row = b.mul(b.rem(block_number, blocks), even_rows);
  const ValueId rows = b.min(even_rows, b.sub(all_rows, first_row));
  const ValueId first_panel = b.mul(b.rem(b.task(), groups), b.index(plan.group));
  const ValueId k = writer.index(plan.k);

  const ValueId sums = b.alloc(DType::kF32, plan.group * plan.row_block * columns);
  const ValueId scratch = b.alloc(DType::kF32, plan.k_block * columns);
  const ValueId totals = plan.integer ? b.alloc(DType::kI32, plan.row_block * columns) : sums;
  epilogue.begin();
  const bool one_panel = plan.group == 1;
  const ValueId panels =
      one_panel ? b.index(1)
                : b.min(b.index(plan.group), b.sub(writer.index(plan.panels()), first_panel));
  // body(panel's number, its first row in sums)
  using PanelBody = std::function<void(const GemmTask&, ValueId)>;
  const auto each_panel = [&](ValueId begin, ValueId end, const PanelBody& body) {
    if (one_panel) return body({batch, first_panel}, b.index(0));
    b.loop(begin, end, b.index(1), {}, [&](ValueId i, auto) {
      body({batch, b.add(first_panel, i)}, b.mul(i, b.index(plan.row_block)));
      return std::vector<ValueId>{};
    });
  };
  each_panel(b.index(0), panels, [&](const GemmTask&, ValueId first_sum) {
    b.loop(b.index(0), rows, b.index(1), {}, [&](ValueId row, auto) {
      const ValueId at = b.mul(b.add(first_sum, row), b.index(columns));
      b.store({sums, at}, b.constant(DType::kF32, 0, {columns}));
      if (plan.integer) b.store({totals, at}, b.integer_constant(DType::kI32, 0, {columns}));
      return std::vector<ValueId>{};
    });
  });

  const ValueId distance = writer.index(plan.row_distance);
  const ValueId a_first = b.add(hooks.a_offset({batch, first_panel}), b.mul(first_row, distance));
  const auto multiply = [&](ValueId begin, ValueId end) {
    b.loop(b.index(0), k, b.index(plan.k_block), {}, [&](ValueId kc, auto) {
      const ValueId count = b.min(b.index(plan.k_block), b.sub(k, kc));
      each_panel(begin, end, [&](const GemmTask& task, ValueId first_sum) {
        const auto multiply_panel = [&](const Panel& panel) {
          emit_micro_tiles(writer, plan, {hooks.a, a_first, kc, count, panel, sums, first_sum},
                           rows);
          return std::vector<ValueId>{};
        };
        const auto dequantized = [&] {
          return multiply_panel(hooks.panel(task, kc, count, scratch));
        };
        if (!hooks.stored_panel) {
          dequantized();
          return;
        }
        const ValueId one_tile = b.less(rows, b.index(plan.tile.heights.front() + 1));
        b.branch(
            one_tile, [&] { return multiply_panel(hooks.stored_panel(task, kc)); }, dequantized);
      });
      if (plan.integer) add_to_totals(b, columns, rows, sums, totals);
      return std::vector<ValueId>{};
    });
  };
  const ValueId at_once = panels_at_once(b, plan, rows, panels);
  if (at_once == panels) {
    multiply(b.index(0), panels);
  } else {
    b.loop(b.index(0), panels, at_once, {}, [&](ValueId begin, auto) {
      multiply(begin, b.min(b.add(begin, at_once), panels));
      return std::vector<ValueId>{};
    });
  }

  const bool whole = plan.n.is_constant() && plan.n.value() % columns == 0;
  const ValueId result_row = b.add(b.mul(batch, all_rows), first_row);
  each_panel(b.index(0), panels, [&](const GemmTask& task, ValueId first_sum) {
    const ValueId column = b.mul(task.panel, b.index(columns));
    const ValueId extent = whole ? kNone : b.sub(writer.index(plan.n), column);
    b.loop(b.index(0), rows, b.index(1), {}, [&](ValueId row, auto) {
      const ValueId at = b.mul(b.add(first_sum, row), b.index(columns));
      epilogue.emit({b.add(result_row, row), column, extent}, b.load({totals, at}, {columns}));
      return std::vector<ValueId>{};
    });
  });
}

}  // namespace tenon::kernels
