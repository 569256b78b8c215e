#include "kernels/llvm/scaled_dot/gemm.h"

#include <algorithm>

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kTargetKBlock = 192;
constexpr int64_t kMostPanels = 8;

// The largest multiple of `unit` up to the target; a longer unit must be cut evenly.
int64_t choose_k_block(int64_t unit) {
  if (unit <= 0) return kTargetKBlock;
  if (unit <= kTargetKBlock) return kTargetKBlock / unit * unit;
  for (int64_t size = kTargetKBlock; size >= 8; size -= 8) {
    if (unit % size == 0) return size;
  }
  return unit;
}

// sums[r … r+height) += a x panel
void emit_micro_tile(LaunchWriter& writer, const GemmPlan& plan, int height, ValueId a,
                     ValueId a_offset, ValueId sums, ValueId row, const Panel& panel,
                     ValueId count) {
  Builder& b = writer.builder;
  const int columns = plan.tile.columns, step = plan.tile.k_step;
  const ValueId distance = writer.index(plan.row_distance);
  const codegen::Access sums_at{sums, b.mul(row, b.index(columns)), {}, {}};
  const auto trip = [&](ValueId at, ValueId acc, int ks) {
    const ValueId left = b.load({a, b.add(a_offset, at), {distance, b.index(1)}, {}}, {height, ks});
    const ValueId right = b.load(
        {panel.buffer, b.add(panel.offset, b.mul(at, b.index(columns))), {}, {}}, {ks, columns});
    return b.dot(acc, left, right);
  };
  ValueId acc = b.load(sums_at, {height, columns});
  const bool whole = plan.k.is_constant() && plan.k.value() % step == 0 && plan.k_block % step == 0;
  const ValueId even = whole ? count : b.mul(b.div(count, b.index(step)), b.index(step));
  acc = b.loop(b.index(0), even, b.index(step), {acc}, [&](ValueId at, auto carried) {
    return std::vector<ValueId>{trip(at, carried[0], step)};
  })[0];
  if (!whole) {
    acc = b.loop(even, count, b.index(1), {acc}, [&](ValueId at, auto carried) {
      return std::vector<ValueId>{trip(at, carried[0], 1)};
    })[0];
  }
  b.store(sums_at, acc);
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
  plan.k_block = choose_k_block(problem.has_scale_b() ? problem.dot.scale_b.block : 0);
  plan.n = problem.n;
  plan.k = problem.k;
  plan.row_distance = problem.k;
  // 0.056 on a Neoverse-N1, which multiplies four floats at once, twice a cycle.
  plan.ns_per_mac = std::max(0.02, 0.22 / host.lanes_f32());
  const int tallest = plan.tile.heights.front();
  plan.row_block = 192 / tallest * tallest;
  if (!problem.n.is_constant()) return plan;
  const int64_t panels = plan.panels().value();
  // Few panels: smaller blocks of rows keep all cores busy. Many: they share what is read of a.
  if (panels < 2 * host.threads) plan.row_block = 48 / tallest * tallest;
  plan.group = std::clamp<int64_t>(panels / (4 * host.threads), 1, kMostPanels);
  return plan;
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
  const ValueId first_row = b.mul(b.rem(block_number, blocks), b.index(plan.row_block));
  const ValueId rows = b.min(b.index(plan.row_block), b.sub(writer.index(plan.rows), first_row));
  const ValueId first_panel = b.mul(b.rem(b.task(), groups), b.index(plan.group));
  const ValueId k = writer.index(plan.k);

  const ValueId sums = b.alloc(DType::kF32, plan.group * plan.row_block * columns);
  const ValueId scratch = b.alloc(DType::kF32, plan.k_block * columns);
  const ValueId totals = plan.integer ? b.alloc(DType::kI32, plan.row_block * columns) : sums;
  epilogue.begin();
  // body(panel's number, its first row in sums)
  const auto each_panel = [&](const std::function<void(const GemmTask&, ValueId)>& body) {
    if (plan.group == 1) return body({batch, first_panel}, b.index(0));
    const ValueId count =
        b.min(b.index(plan.group), b.sub(writer.index(plan.panels()), first_panel));
    b.loop(b.index(0), count, b.index(1), {}, [&](ValueId i, auto) {
      body({batch, b.add(first_panel, i)}, b.mul(i, b.index(plan.row_block)));
      return std::vector<ValueId>{};
    });
  };
  each_panel([&](const GemmTask&, ValueId first_sum) {
    b.loop(b.index(0), rows, b.index(1), {}, [&](ValueId row, auto) {
      const ValueId at = b.mul(b.add(first_sum, row), b.index(columns));
      b.store({sums, at}, b.constant(DType::kF32, 0, {columns}));
      if (plan.integer) b.store({totals, at}, b.integer_constant(DType::kI32, 0, {columns}));
      return std::vector<ValueId>{};
    });
  });

  const ValueId distance = writer.index(plan.row_distance);
  const ValueId a_first = b.add(hooks.a_offset({batch, first_panel}), b.mul(first_row, distance));
  b.loop(b.index(0), k, b.index(plan.k_block), {}, [&](ValueId kc, auto) {
    const ValueId count = b.min(b.index(plan.k_block), b.sub(k, kc));
    each_panel([&](const GemmTask& task, ValueId first_sum) {
      const Panel panel = hooks.panel(task, kc, count, scratch);
      ValueId done = b.index(0);
      for (const int height : plan.tile.heights) {
        const ValueId tiles = b.div(b.sub(rows, done), b.index(height));
        const ValueId end = b.add(done, b.mul(tiles, b.index(height)));
        b.loop(done, end, b.index(height), {}, [&](ValueId row, auto) {
          const ValueId a_offset = b.add(b.add(a_first, b.mul(row, distance)), kc);
          emit_micro_tile(writer, plan, height, hooks.a, a_offset, sums, b.add(first_sum, row),
                          panel, count);
          return std::vector<ValueId>{};
        });
        done = end;
      }
    });
    if (plan.integer) add_to_totals(b, columns, rows, sums, totals);
    return std::vector<ValueId>{};
  });

  const bool whole = plan.n.is_constant() && plan.n.value() % columns == 0;
  const ValueId result_row = b.add(b.mul(batch, writer.index(plan.rows)), first_row);
  each_panel([&](const GemmTask& task, ValueId first_sum) {
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
