#include "kernels/llvm/scaled_dot/gpu_dot.h"

#include <algorithm>

#include "kernels/llvm/split_parts.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

// k of one product: every one is a round through shared memory, and operands in terms take the
// registers of several.
constexpr int kStep = 128, kStridedStep = 64, kTermsStep = 32;

bool has_terms(const GpuDotPlan& plan) { return plan.left_terms > 1 || plan.right_terms > 1; }

// The CTA's place in the result.
struct Task {
  ValueId batch, first_row, column;
  ValueId rows_left = kNone, columns_left = kNone;  // kNone: the whole tile lies inside
};

class GpuDot {
 public:
  GpuDot(LaunchWriter& writer, const GpuDotPlan& plan, ValueId a)
      : writer_(writer), b_(writer.builder), plan_(plan), a_(a) {}

  Task task() {
    const ValueId columns = writer_.index(plan_.column_blocks());
    const ValueId blocks = writer_.index(plan_.row_blocks());
    const ValueId row_block = b_.div(b_.task(), columns);
    Task task;
    task.batch = b_.div(row_block, blocks);
    task.first_row = b_.mul({b_.rem(row_block, blocks), b_.index(plan_.tile.rows)});
    task.column = b_.mul({b_.rem(b_.task(), columns), b_.index(plan_.tile.columns)});
    task.rows_left = left_of(plan_.rows, task.first_row, plan_.tile.rows);
    task.columns_left = left_of(plan_.n, task.column, plan_.tile.columns);
    return task;
  }

  // What is left of `size` from `first` on; kNone where it always holds whole units.
  ValueId left_of(const Dim& size, ValueId first, int64_t unit) {
    if (mod(size, Dim(unit)).is(0)) return kNone;
    return b_.sub(writer_.index(size), first);
  }

  // Terms of a[rows, k … k + count).
  std::vector<Tile> left(const Task& task, ValueId batch_offset, ValueId k, int count,
                         int64_t unit) {
    return terms(load_left(task, batch_offset, k, count, unit), plan_.left_terms);
  }

  // `batch_offset`: of the batch's first element; `unit`: what K is walked in, which may end past
  // it.
  Tile load_left(const Task& task, ValueId batch_offset, ValueId k, int count, int64_t unit) {
    const ValueId k_left = left_of(plan_.k, k, unit);
    const int rows = plan_.tile.rows;
    if (plan_.left_turned) {
      const ValueId row_stride = writer_.index(plan_.rows);
      const ValueId offset = b_.add(b_.mul(k, row_stride), task.first_row);
      const Tile turned = b_.load(
          {a_, b_.add(batch_offset, offset), {row_stride, b_.index(1)}, {k_left, task.rows_left}},
          {count, rows});
      return b_.transpose(turned);
    }
    const ValueId row_stride = writer_.index(plan_.k);
    const ValueId offset = b_.add(b_.mul(task.first_row, row_stride), k);
    return b_.load(
        {a_, b_.add(batch_offset, offset), {row_stride, b_.index(1)}, {task.rows_left, k_left}},
        {rows, count});
  }

  // Of numbers of which that many terms hold every bit.
  std::vector<Tile> terms(Tile numbers, int count) {
    const DType type = b_.type(numbers).dtype;
    if (count == 1) return {type == plan_.operand ? numbers : b_.cast(numbers, plan_.operand)};
    if (type != DType::kF32) numbers = b_.cast(numbers, DType::kF32);
    return split_bf16(b_, numbers, count);
  }

  Tile zero_accumulators() {
    return b_.constant(DType::kF32, 0, {plan_.tile.rows, plan_.tile.columns});
  }
  Tile in_every_row(Tile columns) {
    return b_.broadcast(columns, {plan_.tile.rows, plan_.tile.columns});
  }

  void finish(const Task& task, Epilogue& epilogue, Tile accumulators) {
    const ValueId row = b_.add(b_.mul(task.batch, writer_.index(plan_.rows)), task.first_row);
    epilogue.emit({row, task.column, task.columns_left, task.rows_left}, accumulators);
  }

 private:
  LaunchWriter& writer_;
  Builder& b_;
  const GpuDotPlan& plan_;
  ValueId a_;
};

// The products of one group of words.
class GroupProducts {
 public:
  GroupProducts(Builder& b, GpuDot& dot, const GpuDotPlan& plan, const GpuWeightLayout& layout,
                GpuWeightReader& weight, const Task& task)
      : b_(b),
        dot_(dot),
        plan_(plan),
        layout_(layout),
        weight_(weight),
        task_(task),
        step_(has_terms(plan) ? kTermsStep : kStep) {}

  bool folds() const { return layout_.use == ScaleUse::kAccumulators && layout_.blocks() > 1; }

  // A whole group is one product: its rows of a can be on their way like its words.
  bool is_one_step() const { return !folds() && step_ >= layout_.group() && !has_terms(plan_); }
  Tile load_left(ValueId group) {
    const ValueId zero = b_.index(0), first = b_.mul(group, b_.index(layout_.group()));
    return dot_.load_left(task_, zero, first, static_cast<int>(layout_.group()), layout_.group());
  }

  // `left`: load_left of the group, where it is one step.
  Tile add(ValueId group, Tile words, Tile left, Tile accumulators) {
    const int64_t size = layout_.group();
    if (is_one_step()) {
      const auto terms = dot_.terms(left, 1);
      return dot_parts(b_, accumulators, terms, right(group, words, 0, static_cast<int>(size)));
    }
    const int64_t unit = folds() ? std::min(layout_.block, size) : size;
    for (int64_t first = 0; first < size; first += unit) {
      Tile part = folds() ? dot_.zero_accumulators() : accumulators;
      const int64_t step = std::min<int64_t>(step_, unit);
      for (int64_t k = first; k < first + unit; k += step) {
        part = add_step(group, words, k, static_cast<int>(step), part);
      }
      if (!folds()) {
        accumulators = part;
        continue;
      }
      const Tile scale = dot_.in_every_row(weight_.load_scale(block_of(group, first)));
      accumulators = b_.fma(part, scale, accumulators);
    }
    return accumulators;
  }

 private:
  ValueId block_of(ValueId group, int64_t k) {
    const ValueId first = b_.add({b_.mul(group, b_.index(layout_.group())), b_.index(k)});
    return layout_.blocks() == 1 ? b_.index(0) : b_.div(first, b_.index(layout_.block));
  }

  Tile add_step(ValueId group, Tile words, int64_t k, int count, Tile accumulators) {
    const ValueId first = b_.add({b_.mul(group, b_.index(layout_.group())), b_.index(k)});
    const auto left = dot_.left(task_, b_.index(0), first, count, layout_.group());
    return dot_parts(b_, accumulators, left, right(group, words, k, count));
  }

  // Terms of k … k + count of the group.
  std::vector<Tile> right(ValueId group, Tile words, int64_t k, int count) {
    std::vector<std::vector<Tile>> slabs(layout_.parts());
    for (int64_t at = k; at < k + count; at += kSlab) {
      const auto slab = weight_.slab(words, static_cast<int>(at / kSlab), block_of(group, at));
      for (size_t term = 0; term < slab.size(); ++term) slabs[term].push_back(slab[term]);
    }
    std::vector<Tile> terms;
    for (const std::vector<Tile>& parts : slabs) {
      terms.push_back(parts.size() == 1 ? parts[0] : b_.concat(parts, 0));
    }
    return terms;
  }

  Builder& b_;
  GpuDot& dot_;
  const GpuDotPlan& plan_;
  const GpuWeightLayout& layout_;
  GpuWeightReader& weight_;
  const Task& task_;
  int step_;
};

}  // namespace

void declare_gpu_dot(LaunchWriter& writer, const GpuDotPlan& plan) {
  for (const Dim& dim : {plan.rows, plan.n, plan.k, plan.row_blocks(), plan.column_blocks()}) {
    writer.declare(dim);
  }
}

void emit_packed_dot(LaunchWriter& writer, const GpuDotPlan& plan, ValueId a,
                     const GpuWeightLayout& layout, GpuWeightReader& weight, Epilogue& epilogue) {
  Builder& b = writer.builder;
  GpuDot dot(writer, plan, a);
  const Task task = dot.task();
  epilogue.begin();
  weight.at(task.column);
  GroupProducts products(b, dot, plan, layout, weight, task);
  const ValueId groups = b.index(layout.groups()), last = b.index(layout.groups() - 1);
  // The next group is on its way while this one is multiplied.
  const auto load = [&](ValueId group) {
    std::vector<ValueId> loaded = {weight.load_words(group)};
    if (products.is_one_step()) loaded.push_back(products.load_left(group));
    return loaded;
  };
  const auto body = [&](ValueId group, std::span<const ValueId> carried) {
    std::vector<ValueId> next = load(b.min(b.add(group, b.index(1)), last));
    const Tile left = products.is_one_step() ? carried[2] : kNone;
    next.insert(next.begin(), products.add(group, carried[1], left, carried[0]));
    return next;
  };
  std::vector<ValueId> start = load(b.index(0));
  start.insert(start.begin(), dot.zero_accumulators());
  Tile accumulators = b.loop({b.index(0), groups, b.index(1)}, start, body)[0];
  if (layout.use == ScaleUse::kAccumulators && layout.blocks() == 1) {
    accumulators = b.mul(accumulators, dot.in_every_row(weight.load_scale(b.index(0))));
  }
  dot.finish(task, epilogue, accumulators);
}

void emit_strided_dot(LaunchWriter& writer, const GpuDotPlan& plan, ValueId a, RuntimePanel& right,
                      bool k_last, Epilogue& epilogue) {
  Builder& b = writer.builder;
  GpuDot dot(writer, plan, a);
  const Task task = dot.task();
  epilogue.begin();
  right.begin();
  const int step = has_terms(plan) ? kTermsStep : kStridedStep, columns = plan.tile.columns;
  const ValueId a_first = right.a_offset(task.batch), b_first = right.b_offset(task.batch);
  const ValueId one = b.index(1), k = writer.index(plan.k), n = writer.index(plan.n);
  const auto read = [&](ValueId at) {
    const ValueId k_left = dot.left_of(plan.k, at, step);
    if (!k_last) {
      const ValueId offset = b.add(b_first, b.add(b.mul(at, n), task.column));
      return b.load({right.buffer(), offset, {n, one}, {k_left, task.columns_left}},
                    {step, columns});
    }
    const ValueId offset = b.add(b_first, b.add(b.mul(task.column, k), at));
    return b.transpose(
        b.load({right.buffer(), offset, {k, one}, {task.columns_left, k_left}}, {columns, step}));
  };
  const auto product = [&](ValueId at, Tile accumulators) {
    const Tile codes = read(at);
    const bool plain = !right.is_scaled() && b.type(codes).dtype == plan.operand;
    const Tile numbers = plain ? codes : right.numbers(codes);
    const auto left = dot.left(task, a_first, at, step, step);
    return dot_parts(b, accumulators, left, dot.terms(numbers, plan.right_terms));
  };
  const Tile start = plan.integer ? b.integer_constant(DType::kI32, 0, {plan.tile.rows, columns})
                                  : dot.zero_accumulators();
  const Tile accumulators = b.loop(
      {b.index(0), k, b.index(step)}, {start}, [&](ValueId at, std::span<const ValueId> carried) {
        // Bytes sum exactly in f32 over one step: 64 * 255 * 255 < 2^24.
        const Tile sum =
            plan.integer
                ? b.add(carried[0], b.cast(product(at, dot.zero_accumulators()), DType::kI32))
                : product(at, carried[0]);
        return std::vector<ValueId>{sum};
      })[0];
  dot.finish(task, epilogue, accumulators);
}

}  // namespace tenon::kernels
