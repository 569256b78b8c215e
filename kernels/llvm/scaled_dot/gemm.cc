#include "kernels/llvm/scaled_dot/gemm.h"

#include <algorithm>

#include "kernels/llvm/scaled_dot/panel_task.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;
using Nothing = std::vector<ValueId>;

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
  return b.add(first, b.mul({b.add(k, within), b.index(plan.interleave)}));
}

// sums[row … row+height) += a x panel
void emit_micro_tile(LaunchWriter& writer, const GemmPlan& plan, int height, const Block& block,
                     ValueId row) {
  Builder& b = writer.builder;
  const int columns = plan.tile.columns, step = plan.tile.k_step(height);
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
      whole ? block.count : b.mul({b.div(block.count, b.index(step)), b.index(step)});
  acc = b.loop({b.index(0), even, b.index(step)}, {acc}, [&](ValueId at, auto carried) {
    return std::vector<ValueId>{trip(at, carried[0], step)};
  })[0];
  if (!whole) {
    acc = b.loop(even, block.count, b.index(1), {acc}, [&](ValueId at, auto carried) {
      return std::vector<ValueId>{trip(at, carried[0], 1)};
    })[0];
  }
  b.store(sums_at, acc);
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
  const ValueId more = b.div({b.sub(rows, b.index(1)), b.index(few)});
  return b.max({b.index(1), b.min(b.mul(more, panels), panels)});
}

// totals += sums, sums = 0
void add_to_totals(Builder& b, int columns, ValueId rows, ValueId sums, ValueId totals) {
  b.loop({b.index(0), rows, b.index(1)}, {}, [&](ValueId row, auto) {
    const codegen::Access at{sums, b.mul(row, b.index(columns))};
    const codegen::Access total_at{totals, at.offset};
    const ValueId block = b.cast(b.load(at, {columns}), DType::kI32);
    b.store(total_at, b.add(b.load(total_at, {columns}), block));
    b.store(at, b.constant(DType::kF32, 0, {columns}));
    return Nothing{};
  });
}

class Gemm {
 public:
  Gemm(LaunchWriter& writer, const GemmPlan& plan, const GemmHooks& hooks)
      : writer_(writer),
        b_(writer.builder),
        plan_(plan),
        hooks_(hooks),
        columns_(plan.tile.columns) {}

  void emit(Epilogue& epilogue) {
    locate();
    sums_ = b_.alloc(DType::kF32, plan_.group * plan_.row_block * columns_);
    scratch_ = b_.alloc(DType::kF32, plan_.k_block * columns_);
    totals_ = plan_.integer ? b_.alloc(DType::kI32, plan_.row_block * columns_) : sums_;
    epilogue.begin();
    panels_ = count_panels();
    clear();
    const ValueId distance = writer_.index(plan_.row_distance);
    a_first_ = b_.add({hooks_.a_offset({batch_, first_panel_}), b_.mul(first_row_, distance)});
    const ValueId at_once = panels_at_once(b_, plan_, rows_, panels_);
    if (at_once == panels_) {
      multiply(b_.index(0), panels_);
    } else {
      b_.loop(b_.index(0), panels_, at_once, {}, [&](ValueId begin, auto) {
        multiply(begin, b_.min(b_.add(begin, at_once), panels_));
        return Nothing{};
      });
    }
    store(epilogue);
  }

 private:
  bool one_panel() const { return plan_.group == 1; }

  ValueId count_panels() {
    if (one_panel()) return b_.index(1);
    return b_.min({b_.index(plan_.group), b_.sub(writer_.index(plan_.panels()), first_panel_)});
  }

  void locate() {
    const ValueId groups = writer_.index(plan_.groups());
    const ValueId blocks = writer_.index(ceil_div(plan_.rows, plan_.row_block));
    const ValueId block_number = b_.div(b_.task(), groups);
    batch_ = b_.div(block_number, blocks);
    const ValueId all_rows = writer_.index(plan_.rows);
    const ValueId even_rows = even_row_block(b_, plan_, all_rows, blocks);
    first_row_ = b_.mul(b_.rem(block_number, blocks), even_rows);
    rows_ = b_.min(even_rows, b_.sub(all_rows, first_row_));
    first_panel_ = b_.mul({b_.rem(b_.task(), groups), b_.index(plan_.group)});
  }

  // body(panel's number, its first row in sums)
  using PanelBody = std::function<void(const GemmTask&, ValueId)>;
  void each_panel(ValueId begin, ValueId end, const PanelBody& body) {
    if (one_panel()) return body({batch_, first_panel_}, b_.index(0));
    b_.loop(begin, end, b_.index(1), {}, [&](ValueId i, auto) {
      const GemmTask panel{batch_, b_.add(first_panel_, i)};
      body(panel, b_.mul(i, b_.index(plan_.row_block)));
      return Nothing{};
    });
  }

  // Where row `row` of a panel's sums lies.
  ValueId line(ValueId first_sum, ValueId row) {
    return b_.mul({b_.add(first_sum, row), b_.index(columns_)});
  }

  void clear() {
    each_panel(b_.index(0), panels_, [&](const GemmTask&, ValueId first_sum) {
      b_.loop({b_.index(0), rows_, b_.index(1)}, {}, [&](ValueId row, auto) {
        const ValueId at = line(first_sum, row);
        b_.store({sums_, at}, b_.constant(DType::kF32, 0, {columns_}));
        if (plan_.integer) b_.store({totals_, at}, b_.integer_constant(DType::kI32, 0, {columns_}));
        return Nothing{};
      });
    });
  }

  // All of K for the task's panels [begin, end).
  void multiply(ValueId begin, ValueId end) {
    for_k_blocks(b_, writer_.index(plan_.k), plan_.k_block, [&](ValueId kc, ValueId count) {
      each_panel(begin, end, [&](const GemmTask& task, ValueId first_sum) {
        multiply_panel(task, {hooks_.a, a_first_, kc, count, {}, sums_, first_sum});
      });
      if (plan_.integer) add_to_totals(b_, columns_, rows_, sums_, totals_);
    });
  }

  // `block` as yet without its panel.
  void multiply_panel(const GemmTask& task, Block block) {
    const auto multiply_rows = [&](const Panel& panel) {
      block.panel = panel;
      for_micro_tiles(b_, plan_.tile.heights, rows_, [&](ValueId row, int height) {
        emit_micro_tile(writer_, plan_, height, block, row);
      });
      return Nothing{};
    };
    const auto dequantized = [&] {
      return multiply_rows(hooks_.panel(task, block.k, block.count, scratch_));
    };
    if (!hooks_.stored_panel) {
      dequantized();
      return;
    }
    const ValueId one_tile = b_.less(rows_, b_.index(plan_.tile.heights.front() + 1));
    b_.branch(
        one_tile, [&] { return multiply_rows(hooks_.stored_panel(task, block.k)); }, dequantized);
  }

  void store(Epilogue& epilogue) {
    const ValueId result_row = b_.add(b_.mul(batch_, writer_.index(plan_.rows)), first_row_);
    each_panel(b_.index(0), panels_, [&](const GemmTask& task, ValueId first_sum) {
      store_panel_rows(writer_, {task.panel, result_row, rows_}, {columns_, plan_.n}, epilogue,
                       [&](ValueId row) {
                         return b_.load({totals_, line(first_sum, row)}, {columns_});
                       });
    });
  }

  LaunchWriter& writer_;
  Builder& b_;
  const GemmPlan& plan_;
  const GemmHooks& hooks_;
  const int columns_;
  ValueId batch_ = kNone, first_row_ = kNone, rows_ = kNone;
  ValueId first_panel_ = kNone, panels_ = kNone;
  ValueId sums_ = kNone, scratch_ = kNone, totals_ = kNone;
  ValueId a_first_ = kNone;
};

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
  const int tallest = plan.tile.heights.front(), step = plan.tile.k_step(tallest);
  return tallest == step && plan.k.is_constant() && plan.k.value() % step == 0 &&
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
  Gemm(writer, plan, hooks).emit(epilogue);
}

}  // namespace tenon::kernels
