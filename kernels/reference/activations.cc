#include <cmath>
#include <limits>
#include <numbers>

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {
namespace {

template <typename Fn>
Outputs map(const Call& call, Fn fn) {
  const ReferenceTensor& x = call.input(0);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for (int64_t i = 0; i < x.elements(); ++i) y.set(i, fn(x.number(i)));
  return {std::move(y)};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double erf_gelu(double x) { return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2)); }
double tanh_gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}
double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

double attribute(const Call& call, std::string_view name, double otherwise) {
  return call.node.has(name) ? call.node.number(name, 0) : otherwise;
}

Outputs relu(const Call& call) {
  return map(call, [](double x) { return x < 0 ? 0.0 : x; });
}

Outputs leaky_relu(const Call& call) {
  const double alpha = attribute(call, "alpha", 0.01);
  return map(call, [=](double x) { return x < 0 ? alpha * x : x; });
}

Outputs prelu(const Call& call) {
  const ReferenceTensor &x = call.input(0), &slope = call.input(1);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const double value = x.number(flat);
    y.set(flat, value < 0 ? value * slope.number(broadcast_index(slope.dims, index)) : value);
  });
  return {std::move(y)};
}

Outputs elu(const Call& call) {
  const double alpha = attribute(call, "alpha", 1);
  return map(call, [=](double x) { return x < 0 ? alpha * std::expm1(x) : x; });
}

Outputs selu(const Call& call) {
  const double alpha = attribute(call, "alpha", 1.67326319217681884765625);
  const double gamma = attribute(call, "gamma", 1.05070102214813232421875);
  return map(call, [=](double x) { return gamma * (x > 0 ? x : alpha * std::expm1(x)); });
}

Outputs celu(const Call& call) {
  const double alpha = attribute(call, "alpha", 1);
  return map(call, [=](double x) {
    return std::fmax(0, x) + std::fmin(0, alpha * std::expm1(x / alpha));
  });
}

Outputs thresholded_relu(const Call& call) {
  const double alpha = attribute(call, "alpha", 1);
  return map(call, [=](double x) { return x > alpha ? x : 0.0; });
}

Outputs hard_sigmoid(const Call& call) {
  const double alpha = attribute(call, "alpha", 0.2), beta = attribute(call, "beta", 0.5);
  return map(call, [=](double x) { return std::fmax(0, std::fmin(1, alpha * x + beta)); });
}

Outputs hard_swish(const Call& call) {
  return map(call, [](double x) { return x * std::fmax(0, std::fmin(1, x / 6 + 0.5)); });
}

Outputs swish(const Call& call) {
  const double alpha = attribute(call, "alpha", 1);
  return map(call, [=](double x) { return x * sigmoid(alpha * x); });
}

Outputs quick_gelu(const Call& call) {
  const double alpha = attribute(call, "alpha", 1.702f);
  return map(call, [=](double x) { return x * sigmoid(alpha * x); });
}

Outputs gelu(const Call& call) {
  return map(call, call.node.text("approximate", "none") == "tanh" ? tanh_gelu : erf_gelu);
}

// com.microsoft's two: gelu(x + bias), where the bias may be left out.
template <double (*curve)(double)>
Outputs biased_gelu(const Call& call) {
  const ReferenceTensor& x = call.input(0);
  ReferenceTensor y = ReferenceTensor::zeros(x.dtype, x.dims);
  for_each_index(x.dims, [&](const Index& index, int64_t flat) {
    const double bias =
        call.has(1) ? call.input(1).number(broadcast_index(call.input(1).dims, index)) : 0;
    y.set(flat, curve(x.number(flat) + bias));
  });
  return {std::move(y)};
}

Outputs clip(const Call& call) {
  const double low =
      call.scalar(1, attribute(call, "min", -std::numeric_limits<double>::infinity()));
  const double high =
      call.scalar(2, attribute(call, "max", std::numeric_limits<double>::infinity()));
  return map(call, [=](double x) {
    const double raised = x < low ? low : x;
    return raised > high ? high : raised;
  });
}

Outputs shrink(const Call& call) {
  const double limit = attribute(call, "lambd", 0.5), bias = attribute(call, "bias", 0);
  return map(call, [=](double x) { return x < -limit ? x + bias : x > limit ? x - bias : 0.0; });
}

template <double (*curve)(double)>
Outputs plain(const Call& call) {
  return map(call, curve);
}
double softsign(double x) { return x / (1 + std::fabs(x)); }
double mish(double x) { return x * std::tanh(softplus(x)); }

constexpr auto kOps = std::to_array<OpEntry>({
    {"Relu", relu},
    {"LeakyRelu", leaky_relu},
    {"PRelu", prelu},
    {"Elu", elu},
    {"Selu", selu},
    {"Celu", celu},
    {"ThresholdedRelu", thresholded_relu},
    {"Sigmoid", plain<sigmoid>},
    {"HardSigmoid", hard_sigmoid},
    {"HardSwish", hard_swish},
    {"Swish", swish},
    {"Softplus", plain<softplus>},
    {"Softsign", plain<softsign>},
    {"Mish", plain<mish>},
    {"Gelu", gelu},
    {"com.microsoft::Gelu", plain<erf_gelu>},
    {"com.microsoft::QuickGelu", quick_gelu},
    {"com.microsoft::FastGelu", biased_gelu<tanh_gelu>},
    {"com.microsoft::BiasGelu", biased_gelu<erf_gelu>},
    {"Clip", clip},
    {"Shrink", shrink},
});

}  // namespace

std::span<const OpEntry> activation_ops() { return kOps; }

}  // namespace tenon::kernels::reference
