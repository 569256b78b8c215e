#include <cmath>

#include "base/error.h"
#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

struct Moments {
  double mean = 0, variance = 0, mean_square = 0;
};

// Moments of x over positions at(0) … at(count-1).
template <typename At>
Moments moments(const ReferenceTensor& x, int64_t count, At at) {
  Moments m;
  for (int64_t i = 0; i < count; ++i) m.mean += x.number(at(i));
  m.mean /= static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    const double value = x.number(at(i));
    m.variance += (value - m.mean) * (value - m.mean);
    m.mean_square += value * value;
  }
  m.variance /= static_cast<double>(count);
  m.mean_square /= static_cast<double>(count);
  return m;
}

enum class Centre { kMean, kZero };

struct Normalized {
  ReferenceTensor y, mean, inverse_deviation;
};

// Over all axes from `axis` on; scale and bias broadcast to x.
Normalized normalize(const ReferenceTensor& x, size_t axis, double epsilon, Centre centre,
                     const ReferenceTensor* scale, const ReferenceTensor* bias) {
  const AxisView view = trailing_view(x.dims, axis);
  Dims stat_dims = x.dims;
  std::fill(stat_dims.begin() + static_cast<std::ptrdiff_t>(axis), stat_dims.end(), 1);
  Normalized result{ReferenceTensor::zeros(x.dtype, x.dims),
                    ReferenceTensor::zeros(DType::kF32, stat_dims),
                    ReferenceTensor::zeros(DType::kF32, stat_dims)};
  for (int64_t o = 0; o < view.outer; ++o) {
    const Moments m = moments(x, view.size, [&](int64_t i) { return view.at(o, i, 0); });
    const double spread = centre == Centre::kMean ? m.variance : m.mean_square;
    result.mean.set(o, centre == Centre::kMean ? m.mean : 0);
    result.inverse_deviation.set(o, 1 / std::sqrt(spread + epsilon));
  }
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const int64_t row = view.size == 0 ? 0 : flat / view.size;
    double value =
        (x.number(flat) - result.mean.number(row)) * result.inverse_deviation.number(row);
    if (scale) value *= scale->number(broadcast_index(scale->dims, index));
    if (bias) value += bias->number(broadcast_index(bias->dims, index));
    result.y.set(flat, value);
  });
  return result;
}

const ReferenceTensor* optional_input(const Call& call, size_t index) {
  return call.has(index) ? &call.input(index) : nullptr;
}

void take_declared_types(const Call& call, Outputs& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (call.wants(i)) outputs[i].dtype = call.output_type(i);
  }
}

Outputs layer_normalization(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", -1), x.dims.size());
  Normalized n = normalize(x, axis, call.node.number("epsilon", 1e-5f), Centre::kMean,
                           optional_input(call, 1), optional_input(call, 2));
  Outputs outputs{std::move(n.y), std::move(n.mean), std::move(n.inverse_deviation)};
  take_declared_types(call, outputs);
  return outputs;
}

Outputs rms_normalization(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const size_t axis = normal_axis(call.node.integer("axis", -1), x.dims.size());
  Normalized n = normalize(x, axis, call.node.number("epsilon", 1e-5f), Centre::kZero,
                           optional_input(call, 1), nullptr);
  Outputs outputs{std::move(n.y), std::move(n.inverse_deviation)};
  take_declared_types(call, outputs);
  return outputs;
}

ReferenceTensor sum(const ReferenceTensor& a, const ReferenceTensor& b) {
  ReferenceTensor y = ReferenceTensor::zeros(a.dtype, a.dims);
  for_each_index(a.dims, [&](const Index& index, int64_t flat) {
    y.set(flat, a.number(flat) + b.number(broadcast_index(b.dims, index)));
  });
  return y;
}

// Outputs: normalised, mean, inverse deviation, input + skip + bias, which the norm is one of.
Outputs skip_normalization(const Call& call, Centre centre, size_t beta, size_t bias) {
  ReferenceTensor x = sum(call.input(0), call.input(1));
  if (call.has(bias)) x = sum(x, call.input(bias));
  x = x.rounded();
  const ReferenceTensor* shift = centre == Centre::kMean ? optional_input(call, beta) : nullptr;
  Normalized n = normalize(x, x.dims.size() - 1, call.node.number("epsilon", 1e-12f), centre,
                           &call.input(2), shift);
  Outputs outputs{std::move(n.y), std::move(n.mean), std::move(n.inverse_deviation), std::move(x)};
  take_declared_types(call, outputs);
  return outputs;
}
Outputs skip_layer_normalization(const Call& call) {
  return skip_normalization(call, Centre::kMean, 3, 4);
}
Outputs skip_rms_normalization(const Call& call) {
  return skip_normalization(call, Centre::kZero, 0, 3);
}

// x is [N, C, ...]; each (n, group of channels) is one row.
Outputs normalize_groups(const Call& call, int64_t groups) {
  const ReferenceTensor &x = call.input(0), &scale = call.input(1), &bias = call.input(2);
  const int64_t channels = x.dims.at(1);
  const int64_t area = trailing_view(x.dims, 2).size;
  const int64_t per_group = channels / groups * area;
  const double epsilon = call.node.number("epsilon", 1e-5f);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t row = 0; row < x.dims[0] * groups; ++row) {
    const Moments m = moments(x, per_group, [&](int64_t i) { return row * per_group + i; });
    for (int64_t i = 0; i < per_group; ++i) {
      const int64_t flat = row * per_group + i;
      const int64_t channel = flat / area % channels;
      // GroupNormalization-18 has one scale per group.
      const int64_t at = scale.elements() == channels ? channel : channel / (channels / groups);
      const double value = (x.number(flat) - m.mean) / std::sqrt(m.variance + epsilon);
      y.set(flat, value * scale.number(at) + bias.number(at));
    }
  }
  return {std::move(y)};
}
Outputs group_normalization(const Call& call) {
  return normalize_groups(call, call.node.integer("num_groups", 1));
}
Outputs instance_normalization(const Call& call) {
  return normalize_groups(call, call.input(0).dims.at(1));
}

Outputs batch_normalization(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const double epsilon = call.node.number("epsilon", 1e-5f);
  const AxisView view = x.dims.size() > 1 ? axis_view(x.dims, 1) : AxisView{x.dims[0], 1, 1};
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t flat = 0; flat < x.elements(); ++flat) {
    const int64_t c = flat / view.inner % view.size;
    const double scale = call.input(1).number(c), bias = call.input(2).number(c);
    const double mean = call.input(3).number(c), variance = call.input(4).number(c);
    y.set(flat, (x.number(flat) - mean) / std::sqrt(variance + epsilon) * scale + bias);
  }
  return {std::move(y)};
}

Outputs mean_variance_normalization(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  std::vector<int64_t> axes = call.node.integers("axes");
  if (axes.empty()) axes = {0, 2, 3};
  Dims kept = x.dims;
  for (const int64_t axis : axes) kept[normal_axis(axis, x.dims.size())] = 1;
  const int64_t rows = element_count(kept);
  std::vector<std::vector<int64_t>> members(static_cast<size_t>(rows));
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    members[static_cast<size_t>(broadcast_index(kept, index))].push_back(flat);
  });
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (const std::vector<int64_t>& row : members) {
    const Moments m = moments(x, static_cast<int64_t>(row.size()),
                              [&](int64_t i) { return row[static_cast<size_t>(i)]; });
    for (const int64_t flat : row)
      y.set(flat, (x.number(flat) - m.mean) / (std::sqrt(m.variance) + 1e-9));
  }
  return {std::move(y)};
}

Outputs lp_normalization(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  const AxisView view =
      axis_view(x.dims, normal_axis(call.node.integer("axis", -1), x.dims.size()));
  const bool squares = call.node.integer("p", 2) == 2;
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t o = 0; o < view.outer; ++o) {
    for (int64_t n = 0; n < view.inner; ++n) {
      double norm = 0;
      for (int64_t i = 0; i < view.size; ++i) {
        const double value = x.number(view.at(o, i, n));
        norm += squares ? value * value : std::fabs(value);
      }
      if (squares) norm = std::sqrt(norm);
      for (int64_t i = 0; i < view.size; ++i) {
        const int64_t at = view.at(o, i, n);
        y.set(at, norm == 0 ? 0 : x.number(at) / norm);
      }
    }
  }
  return {std::move(y)};
}

constexpr auto kOps = std::to_array<OpEntry>({
    {"LayerNormalization", layer_normalization},
    {"RMSNormalization", rms_normalization},
    {"SimplifiedLayerNormalization", rms_normalization},
    {"com.microsoft::SkipLayerNormalization", skip_layer_normalization},
    {"com.microsoft::SkipSimplifiedLayerNormalization", skip_rms_normalization},
    {"GroupNormalization", group_normalization},
    {"InstanceNormalization", instance_normalization},
    {"BatchNormalization", batch_normalization},
    {"MeanVarianceNormalization", mean_variance_normalization},
    {"LpNormalization", lp_normalization},
});

}  // namespace

std::span<const OpEntry> normalization_ops() { return kOps; }

}  // namespace tenon::kernels::reference
