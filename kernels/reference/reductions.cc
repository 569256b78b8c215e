#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

struct ReducedShape {
  std::vector<bool> reduced;  // per axis
  Dims kept_dims;             // reduced axes are 1
  Dims result_dims;           // after keepdims
  int64_t count = 1;          // elements that fall into one result
  bool nothing = false;       // no axes, and the node says that this means none
};

ReducedShape reduced_shape(const Call& call) {
  const Dims& dims = call.input(0).dims;
  const std::vector<int64_t> axes = call.integers(1, "axes").value_or(std::vector<int64_t>{});
  ReducedShape shape;
  shape.reduced.assign(dims.size(), axes.empty());
  shape.nothing = axes.empty() && call.node.integer("noop_with_empty_axes", 0) != 0;
  for (const int64_t axis : axes) shape.reduced[normal_axis(axis, dims.size())] = true;
  const bool keep = call.node.integer("keepdims", 1) != 0;
  for (size_t i = 0; i < dims.size(); ++i) {
    shape.kept_dims.push_back(shape.reduced[i] ? 1 : dims[i]);
    if (keep || !shape.reduced[i]) shape.result_dims.push_back(shape.kept_dims.back());
    if (shape.reduced[i]) shape.count *= dims[i];
  }
  return shape;
}

// Folds the elements of each result with `step`, from `start`, and ends with `finish`.
struct RealFold {
  double start;
  double (*step)(double, double);
  double (*finish)(double, int64_t count);
};
struct IntegerFold {
  int64_t (*start)(DType);
  int64_t (*step)(int64_t, int64_t);
  int64_t (*finish)(int64_t, int64_t count);
};

Outputs fold(const Call& call, const RealFold& real, const IntegerFold& integer) {
  const ReferenceTensor& x = call.input(0);
  const ReducedShape shape = reduced_shape(call);
  if (shape.nothing) return {x};
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, shape.kept_dims);
  const int64_t integer_start = x.is_real() ? 0 : integer.start(x.dtype);
  std::fill(y.reals.begin(), y.reals.end(), real.start);
  std::fill(y.integers.begin(), y.integers.end(), integer_start);
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const auto at = static_cast<size_t>(broadcast_index(shape.kept_dims, index));
    if (x.is_real()) {
      y.reals[at] = real.step(y.reals[at], x.number(flat));
    } else {
      y.integers[at] = integer.step(y.integers[at], x.integers[static_cast<size_t>(flat)]);
    }
  });
  for (double& value : y.reals) value = real.finish(value, shape.count);
  for (int64_t i = 0; i < static_cast<int64_t>(y.integers.size()); ++i) {
    y.set_integer(i, integer.finish(y.integers[static_cast<size_t>(i)], shape.count));
  }
  y.dims = shape.result_dims;
  return {std::move(y)};
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double same(double x, int64_t) { return x; }
int64_t same_integer(int64_t x, int64_t) { return x; }
int64_t zero(DType) { return 0; }
int64_t one(DType) { return 1; }
int64_t lowest(DType dtype) {
  if (!is_signed(dtype)) return 0;
  return static_cast<int64_t>(~uint64_t{0} << (bit_width(dtype) - 1));
}
int64_t highest(DType dtype) {
  if (dtype == DType::kBool) return 1;
  return static_cast<int64_t>((uint64_t{1} << (bit_width(dtype) - is_signed(dtype) - 1)) * 2 - 1);
}
double add(double a, double b) { return a + b; }
int64_t add_integers(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
double multiply(double a, double b) { return a * b; }
int64_t multiply_integers(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }
int64_t larger_integer(int64_t a, int64_t b) { return std::max(a, b); }
double smaller(double a, double b) { return std::isnan(a) || a < b ? a : b; }
int64_t smaller_integer(int64_t a, int64_t b) { return std::min(a, b); }
double add_magnitude(double a, double b) { return a + std::fabs(b); }
int64_t add_magnitude_integer(int64_t a, int64_t b) { return add_integers(a, std::abs(b)); }
double add_square(double a, double b) { return a + b * b; }
int64_t add_square_integer(int64_t a, int64_t b) {
  return add_integers(a, multiply_integers(b, b));
}
double divide_by_count(double x, int64_t count) {
  return x / static_cast<double>(std::max<int64_t>(count, 1));
}
int64_t divide_integer_by_count(int64_t x, int64_t count) { return count == 0 ? 0 : x / count; }
double root(double x, int64_t) { return std::sqrt(x); }
int64_t integer_root(int64_t x, int64_t) {
  return static_cast<int64_t>(std::sqrt(static_cast<double>(x)));
}
double logarithm(double x, int64_t) { return std::log(x); }
int64_t integer_logarithm(int64_t x, int64_t) {
  return static_cast<int64_t>(std::log(static_cast<double>(x)));
}

constexpr RealFold kSum{0, add, same}, kMean{0, add, divide_by_count}, kProduct{1, multiply, same},
    kLargest{-kInfinity, larger, same}, kSmallest{kInfinity, smaller, same},
    kL1{0, add_magnitude, same}, kL2{0, add_square, root}, kSquares{0, add_square, same},
    kLogSum{0, add, logarithm};
constexpr IntegerFold kIntegerSum{zero, add_integers, same_integer},
    kIntegerMean{zero, add_integers, divide_integer_by_count},
    kIntegerProduct{one, multiply_integers, same_integer},
    kIntegerLargest{lowest, larger_integer, same_integer},
    kIntegerSmallest{highest, smaller_integer, same_integer},
    kIntegerL1{zero, add_magnitude_integer, same_integer},
    kIntegerL2{zero, add_square_integer, integer_root},
    kIntegerSquares{zero, add_square_integer, same_integer},
    kIntegerLogSum{zero, add_integers, integer_logarithm};

template <const RealFold& real, const IntegerFold& integer>
Outputs reduce(const Call& call) {
  return fold(call, real, integer);
}

Outputs reduce_log_sum_exp(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  ReferenceTensor exponentials = x;
  for (int64_t i = 0; i < x.elements(); ++i) exponentials.set(i, std::exp(x.number(i)));
  Call step = call;
  step.inputs[0] = &exponentials;
  return fold(step, kLogSum, kIntegerLogSum);
}

template <bool largest>
Outputs arg_extreme(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  // The normal form inside a loop names the axis as the only one of `axes`.
  const std::vector<int64_t> axes = call.node.integers("axes");
  const size_t axis =
      normal_axis(call.node.integer("axis", axes.empty() ? 0 : axes[0]), x.dims.size());
  const bool last = call.node.integer("select_last_index", 0) != 0;
  const AxisView view = axis_view(x.dims, axis);
  Dims dims = x.dims;
  dims[axis] = 1;
  ReferenceTensor y = ReferenceTensor::zeros(DType::kI64, dims);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      int64_t best = 0;
      for (int64_t i = 1; i < view.size; ++i) {
        const double value = x.number(view.at(o, i, n)), held = x.number(view.at(o, best, n));
        const bool better = largest ? value > held : value < held;
        if (better || (last && value == held)) best = i;
      }
      y.set_integer(o * view.inner + n, best);
    }
  }
  if (call.node.integer("keepdims", 1) == 0)
    y.dims.erase(y.dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return {std::move(y)};
}

// The axes that one softmax runs over: before opset 13 all from `axis` on.
AxisView softmax_view(const Call& call) {
  const Dims& dims = call.input(0).dims;
  const bool flattened = call.node.since_version > 0 && call.node.since_version < 13;
  const size_t axis = normal_axis(call.node.integer("axis", flattened ? 1 : -1), dims.size());
  return flattened ? trailing_view(dims, axis) : axis_view(dims, axis);
}

template <typename Fn>
Outputs per_row(const Call& call, Fn fn) {
  const ReferenceTensor& x = call.input(0);
  const AxisView view = softmax_view(call);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      std::vector<double> row;
      for (int64_t i = 0; i < view.size; ++i) row.push_back(x.number(view.at(o, i, n)));
      fn(row);
      for (int64_t i = 0; i < view.size; ++i) y.set(view.at(o, i, n), row[static_cast<size_t>(i)]);
    }
  }
  return {std::move(y)};
}

// Exponentials relative to the largest element; returns their sum.
double exponentiate(std::vector<double>& row) {
  double largest = -kInfinity, sum = 0;
  for (const double value : row) largest = larger(largest, value);
  for (double& value : row) sum += value = std::exp(value - largest);
  return sum;
}

Outputs softmax(const Call& call) {
  return per_row(call, [](std::vector<double>& row) {
    const double sum = exponentiate(row);
    for (double& value : row) value /= sum;
  });
}

Outputs log_softmax(const Call& call) {
  return per_row(call, [](std::vector<double>& row) {
    double largest = -kInfinity;
    for (const double value : row) largest = larger(largest, value);
    std::vector<double> exponentials = row;
    const double log_sum = std::log(exponentiate(exponentials)) + largest;
    for (double& value : row) value -= log_sum;
  });
}

Outputs hardmax(const Call& call) {
  return per_row(call, [](std::vector<double>& row) {
    const auto best = std::max_element(row.begin(), row.end()) - row.begin();
    std::fill(row.begin(), row.end(), 0.0);
    if (!row.empty()) row[static_cast<size_t>(best)] = 1;
  });
}

Outputs cumulative_sum(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const int64_t asked = call.has(1) ? call.input(1).integers.at(0) : call.node.integer("axis", 0);
  const AxisView view = axis_view(x.dims, normal_axis(asked, x.dims.size()));
  const bool exclusive = call.node.integer("exclusive", 0) != 0;
  const bool reverse = call.node.integer("reverse", 0) != 0;
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      double sum = 0;
      int64_t integer_sum = 0;
      for (int64_t step = 0; step < view.size; ++step) {
        const int64_t at = view.at(o, reverse ? view.size - 1 - step : step, n);
        const double real = x.is_real() ? x.number(at) : 0;
        const int64_t integer = x.is_real() ? 0 : x.integers[static_cast<size_t>(at)];
        if (!exclusive) sum += real, integer_sum = add_integers(integer_sum, integer);
        x.is_real() ? y.set(at, sum) : y.set_integer(at, integer_sum);
        if (exclusive) sum += real, integer_sum = add_integers(integer_sum, integer);
      }
    }
  }
  return {std::move(y)};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"ReduceSum", reduce<kSum, kIntegerSum>},
    {"ReduceMean", reduce<kMean, kIntegerMean>},
    {"ReduceMax", reduce<kLargest, kIntegerLargest>},
    {"ReduceMin", reduce<kSmallest, kIntegerSmallest>},
    {"ReduceProd", reduce<kProduct, kIntegerProduct>},
    {"ReduceL1", reduce<kL1, kIntegerL1>},
    {"ReduceL2", reduce<kL2, kIntegerL2>},
    {"ReduceSumSquare", reduce<kSquares, kIntegerSquares>},
    {"ReduceLogSum", reduce<kLogSum, kIntegerLogSum>},
    {"ReduceLogSumExp", reduce_log_sum_exp},
    {"ArgMax", arg_extreme<true>},
    {"ArgMin", arg_extreme<false>},
    {"Softmax", softmax},
    {"LogSoftmax", log_softmax},
    {"Hardmax", hardmax},
    {"CumSum", cumulative_sum},
});

}  // namespace

std::span<const OpEntry> reduction_ops() { return kOps; }

}  // namespace tenon::kernels::reference
