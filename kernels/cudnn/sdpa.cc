#include "kernels/cudnn/sdpa.h"

#include <limits>
#include <optional>
#include <vector>

#include "base/error.h"

namespace tenon::cudnn {
namespace {

constexpr int64_t kRowAxis = 2, kColumnAxis = 3;
constexpr int kHidesByInfinity = 91000;  // older ones make NaN of it

// The forms that engines look for: an operation more, less or in another order is another graph to
// them.
class SdpaGraph {
 public:
  SdpaGraph(const Sdpa& sdpa, const SdpaSizes& sizes)
      : sdpa_(sdpa),
        sizes_(sizes),
        scores_{sizes.batch, sdpa.heads, sizes.queries, sizes.keys},
        rows_{sizes.batch, sdpa.heads, sizes.queries, 1} {}

  Graph make() {
    add_operands();
    size_t scores = made_.add({DType::kF32, scores_, true});
    made_.steps.emplace_back(MatmulStep{q_, k_, scores, query_lengths_, key_lengths_, {}});
    scores = point(kMultiply, scores, constant(DType::kF32, sdpa_.scale));
    if (sdpa_.has_lengths) scores = hide_behind_lengths(scores);
    if (sdpa_.band.right >= 0) scores = hide_to_the_right(scores);
    if (sdpa_.band.left >= 0) scores = hide_to_the_left(scores);
    const size_t weights = softmax(scores);
    made_.steps.emplace_back(MatmulStep{weights, v_, y_, query_lengths_, {}, key_lengths_});
    return std::move(made_);
  }

 private:
  static std::vector<int64_t> strides(const SdpaSizes::Strides& of) {
    return {of.batch, of.head, of.row, 1};
  }

  void add_operands() {
    const DType type = sdpa_.dtype;
    q_ = made_.add({.dtype = type,
                    .dims = {sizes_.batch, sdpa_.heads, sizes_.queries, sdpa_.depth},
                    .given_strides = strides(sizes_.q)});
    // The product takes it transposed.
    k_ = made_.add({.dtype = type,
                    .dims = {sizes_.batch, sdpa_.kv_heads, sdpa_.depth, sizes_.keys},
                    .given_strides = {sizes_.k.batch, sizes_.k.head, 1, sizes_.k.row}});
    v_ = made_.add({.dtype = type,
                    .dims = {sizes_.batch, sdpa_.kv_heads, sizes_.keys, sdpa_.value_depth},
                    .given_strides = strides(sizes_.v)});
    const Tensor lengths{.dtype = DType::kI32, .dims = {sizes_.batch, 1, 1, 1}};
    if (sdpa_.has_lengths) query_lengths_ = made_.add(lengths);
    if (sdpa_.has_lengths) key_lengths_ = made_.add(lengths);
    if (sdpa_.has_distances()) distances_ = made_.add(lengths);
    y_ = made_.add({.dtype = type,
                    .dims = {sizes_.batch, sdpa_.heads, sizes_.queries, sdpa_.value_depth},
                    .given_strides = strides(sizes_.y)});
  }

  size_t constant(DType dtype, double value) {
    return made_.add({.dtype = dtype, .dims = {1, 1, 1, 1}, .constant = value});
  }

  // A result of the scores' shape.
  size_t point(PointwiseMode mode, size_t x, std::optional<size_t> b, DType result = DType::kF32,
               DType compute = DType::kF32) {
    const size_t y = made_.add({result, scores_, true});
    made_.steps.emplace_back(PointwiseStep{mode, x, b, y, {}, {}, compute});
    return y;
  }

  size_t compare(PointwiseMode mode, size_t x, size_t b) {
    return point(mode, x, b, DType::kBool, DType::kBool);
  }

  size_t places(size_t scores, int64_t axis, DType compute) {
    const size_t y = made_.add({DType::kI32, scores_, true});
    made_.steps.emplace_back(PointwiseStep{kIndex, scores, {}, y, {}, axis, compute});
    return y;
  }

  size_t keep(size_t scores, size_t visible) {
    const double hidden = sdpa_.version < kHidesByInfinity
                              ? std::numeric_limits<float>::lowest()
                              : -std::numeric_limits<double>::infinity();
    const size_t fill = constant(DType::kF32, hidden);
    const size_t y = made_.add({DType::kF32, scores_, true});
    made_.steps.emplace_back(PointwiseStep{kSelect, scores, fill, y, visible});
    return y;
  }

  size_t hide_behind_lengths(size_t scores) {
    const size_t row = places(scores, kRowAxis, DType::kI32);
    const size_t column = places(scores, kColumnAxis, DType::kI32);
    const size_t is_query = compare(kLess, row, *query_lengths_);
    const size_t is_key = compare(kLess, column, *key_lengths_);
    return keep(scores, compare(kAnd, is_query, is_key));
  }

  size_t queries() {
    return distances_ ? *distances_ : constant(DType::kI32, static_cast<double>(sizes_.queries));
  }
  size_t keys() {
    return key_lengths_ ? *key_lengths_ : constant(DType::kI32, static_cast<double>(sizes_.keys));
  }

  // row + keys - queries + right >= column
  size_t hide_to_the_right(size_t scores) {
    size_t row = places(scores, kRowAxis, DType::kF32);
    const size_t column = places(scores, kColumnAxis, DType::kF32);
    const auto add = [&](PointwiseMode mode, size_t number) {
      row = point(mode, row, number, DType::kI32, DType::kI32);
    };
    if (sdpa_.band.from_end) {
      add(kAdd, keys());
      add(kSubtract, queries());
    }
    if (sdpa_.band.right > 0) {
      add(kAdd, constant(DType::kI32, static_cast<double>(sdpa_.band.right)));
    }
    return keep(scores, compare(kGreaterEqual, row, column));
  }

  // column + left + 1 - keys + queries > row
  size_t hide_to_the_left(size_t scores) {
    const size_t row = places(scores, kRowAxis, DType::kF32);
    size_t column = places(scores, kColumnAxis, DType::kF32);
    int64_t left = sdpa_.band.left + 1;
    const bool by_lengths = sdpa_.band.from_end && sdpa_.has_lengths;
    if (sdpa_.band.from_end && !by_lengths) left += sizes_.queries - sizes_.keys;
    // Sizes that are known ahead stand in one number, which engines take as a float.
    const DType type = by_lengths ? DType::kI32 : DType::kF32;
    column = point(kAdd, column, constant(type, static_cast<double>(left)), type, type);
    if (by_lengths) {
      column = point(kSubtract, column, keys(), DType::kI32, DType::kI32);
      column = point(kAdd, column, queries(), DType::kI32, DType::kI32);
    }
    return keep(scores, compare(kGreater, column, row));
  }

  size_t reduce(ReductionMode mode, size_t x) {
    const size_t y = made_.add({DType::kF32, rows_, true});
    made_.steps.emplace_back(ReductionStep{mode, x, y});
    return y;
  }

  size_t softmax(size_t scores) {
    const size_t largest = reduce(kLargest, scores);
    const size_t powers = point(kExp, point(kSubtract, scores, largest), {});
    const size_t sum = reduce(kSum, powers);
    // What a backward pass would read. Nobody does, but engines know the softmax by it.
    const size_t log = made_.add({DType::kF32, rows_, true});
    made_.steps.emplace_back(PointwiseStep{kLog, sum, {}, log});
    const size_t statistics = made_.add({DType::kF32, rows_, true});
    made_.steps.emplace_back(PointwiseStep{kAdd, largest, log, statistics});
    return point(kDivide, powers, sum, sdpa_.dtype);
  }

  const Sdpa& sdpa_;
  const SdpaSizes& sizes_;
  const std::vector<int64_t> scores_, rows_;
  Graph made_;
  size_t q_ = 0, k_ = 0, v_ = 0, y_ = 0;
  std::optional<size_t> query_lengths_, key_lengths_, distances_;
};

}  // namespace

SdpaSizes SdpaSizes::from(std::span<const int64_t> numbers) {
  if (numbers.size() < kCount) throw InternalError("an attention of cuDNN lacks sizes");
  SdpaSizes sizes{numbers[0], numbers[1], numbers[2], {}, {}, {}, {}};
  Strides* const operands[] = {&sizes.q, &sizes.k, &sizes.v, &sizes.y};
  for (size_t i = 0; i < std::size(operands); ++i) {
    const auto own = numbers.subspan(3 + 3 * i, 3);
    *operands[i] = {own[0], own[1], own[2]};
  }
  return sizes;
}

SdpaProblem Sdpa::gates(int64_t queries, int64_t keys, int compute_major) const {
  SdpaProblem gates;
  gates.compute_major = compute_major;
  gates.head_size = depth;
  gates.value_size = value_depth;
  gates.queries = queries;
  gates.keys = keys;
  gates.window = band.left + 1;
  gates.causal = band.right == 0;
  gates.has_right_end = band.right >= 0;
  gates.from_end = band.from_end;
  gates.has_lengths = has_lengths;
  return gates;
}

Graph Sdpa::graph(const SdpaSizes& sizes) const { return SdpaGraph(*this, sizes).make(); }

}  // namespace tenon::cudnn
