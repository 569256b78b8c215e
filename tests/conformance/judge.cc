#include "tests/conformance/judge.h"

#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "kernels/selector.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {

Settings conformance_settings() { return test_settings(); }

Support runs(const ir::Graph& fused, const Settings& settings) {
  for (const ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    if (Support answer = supports(fused, node, settings); !answer) {
      return Support::no(fmt::format("{}: {}", node.op, answer.reason));
    }
  }
  return Support::yes();
}

Settings pipelined_settings() {
  Settings settings = conformance_settings();
  if (settings.gpu) return settings;
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->sm_count = 6;
  settings.gpu->pipelines = true;
  settings.emulate = true;
  return settings;
}

Settings assembled_settings() {
  Settings settings = conformance_settings();
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->pipelines = true;
  return settings;
}

std::vector<ReferenceTensor> run(Executable& executable, const ir::Graph& fused,
                                 const std::vector<ReferenceTensor>& inputs) {
  std::vector<HostTensor> bytes;
  for (const ReferenceTensor& input : inputs)
    bytes.push_back({input.dtype, input.dims, input.bytes()});
  TestContext context(fused, std::move(bytes));
  executable.run(context);
  std::vector<ReferenceTensor> results;
  for (const HostTensor& output : context.take_outputs()) {
    results.push_back(ReferenceTensor::from_bytes(output.dtype, output.dims, output.bytes.data()));
  }
  return results;
}

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return std::ldexp(1, -53);
    case DType::kF32:
      return std::ldexp(1, -24);
    case DType::kF16:
      return std::ldexp(1, -11);
    case DType::kBF16:
      return std::ldexp(1, -8);
    default:
      return 0;
  }
}

namespace {

// The smallest step of a float type near zero.
double smallest_step(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return std::ldexp(1, -149);
    case DType::kF16:
      return std::ldexp(1, -24);
    case DType::kBF16:
      return std::ldexp(1, -133);
    default:
      return 0;
  }
}

bool agree(DType dtype, double result, double expected, double rounded, double tolerance) {
  if (std::isnan(rounded)) return std::isnan(result);
  if (result == rounded) return true;
  // Just below overflow either side of the edge is right.
  const double allowed =
      tolerance + unit_roundoff(dtype) * std::fabs(expected) + smallest_step(dtype);
  return std::isfinite(result) && std::isfinite(expected) &&
         std::fabs(result - expected) <= allowed;
}

}  // namespace

std::string disagreement(const std::vector<ReferenceTensor>& results,
                         const std::vector<ReferenceTensor>& expected, const Tolerance& tolerance) {
  for (size_t i = 0; i < expected.size(); ++i) {
    const ReferenceTensor &result = results.at(i), rounded = expected[i].rounded();
    if (result.dims != expected[i].dims) {
      return fmt::format("output {} is {}, expected {}", i, result.dims, expected[i].dims);
    }
    int64_t wrong = 0;
    std::string first;
    for (int64_t at = 0; at < result.elements(); ++at) {
      const double number = result.number(at), wanted = expected[i].number(at);
      const double allowed = tolerance(i, at, wanted);
      if (agree(result.dtype, number, wanted, rounded.number(at), allowed)) continue;
      if (wrong++ == 0) {
        first = fmt::format("element {} is {:.9g}, expected {:.9g} +- {:.3g}", at, number, wanted,
                            allowed);
      }
    }
    if (wrong > 0) {
      return fmt::format("output {} {}: {} of {} elements differ; {}", i, expected[i].dims, wrong,
                         result.elements(), first);
    }
  }
  return "";
}

}  // namespace tenon::kernels
