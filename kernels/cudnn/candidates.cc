#include "kernels/cudnn/candidates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <mutex>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "graph_partitioner/ir/channels_last.h"
#include "kernels/cudnn/convolution.h"
#include "kernels/cudnn/filter.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/cudnn/handles.h"
#include "kernels/cudnn/pooling.h"
#include "kernels/device/device.h"
#include "kernels/planning/wanted_config.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kSampleExtent = 224;         // of a size that is open until Run
constexpr int64_t kSpareWorkspace = 16 << 20;  // beside copies of x, w and y in another layout
constexpr size_t kMostVerdicts = 4096;

// Where channels are stored last: what passes ask before they turn anything around.
Support may_be_channels_last(const ir::Graph& graph, const ir::Node& node,
                             const Settings& settings) {
  if (!settings.tuning.channels_last) return Support::no("channels are to be stored first");
  if (!settings.tuning.padded_channels && node.has(ir::kPaddedFrom)) {
    return Support::no("channels are not to be filled up");
  }
  if (!graph.value(node.input(1)).is_constant()) {
    return Support::no("filters that a Run brings are stored with channels first");
  }
  // With tf32 cuDNN 9.14 names engines that fail when they run.
  if (graph.value(node.input(0)).dtype == DType::kF32) {
    return Support::no("cuDNN's float32 engines read channels first");
  }
  return Support::yes();
}

std::vector<int64_t> sample_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (const Dim& dim : shape) {
    dims.push_back(dim.evaluate([](std::string_view) { return kSampleExtent; }));
  }
  return dims;
}

struct Verdict {
  Support support;
  std::vector<int64_t> engines;  // that may be used, best first
};

// Every node is asked about several times.
Verdict ask_once(const cudnn::Graph& graph, const codegen::GpuTarget& target,
                 const cudnn::Rules& rules) {
  static std::mutex& mutex = *new std::mutex;
  static auto& verdicts = *new std::map<std::string, Verdict>;
  const std::string question =
      fmt::format("{} {} {} {}\n{}", target.text(), rules.tensor_cores, rules.only_fast,
                  cudnn::library().functions.path, graph.text());
  const std::lock_guard lock(mutex);
  if (const auto found = verdicts.find(question); found != verdicts.end()) return found->second;
  if (verdicts.size() >= kMostVerdicts) verdicts.clear();
  cudnn::PlanAnswer answer =
      cudnn::make_plan(cudnn::library().functions, {.described = &target}, graph, rules);
  Verdict verdict{std::move(answer.support), {}};
  if (answer.plan) verdict.engines = std::move(answer.plan->engines);
  return verdicts[question] = std::move(verdict);
}

// One for each engine, that which is wanted first: a tuner measures them.
std::vector<PlannedKernel> kernels_of(const std::vector<int64_t>& engines,
                                      const TuningOverrides& tuning) {
  std::vector<PlannedKernel> kernels;
  const size_t told = std::min(engines.size(), static_cast<size_t>(std::max(tuning.told, 1)));
  for (size_t i = 0; i < told; ++i) {
    kernels.push_back(
        {{Skeleton::kLibrary,
          {{Knob::kEngine, static_cast<int64_t>(i)}, {Knob::kEngineNumber, engines[i]}}}});
  }
  put_wanted_first(tuning, {}, 1, kernels, [](const PlannedKernel& each) { return each.config; });
  return kernels;
}

// The node's inputs in the order of the graph's tensors.
std::vector<ir::ValueId> buffers_of(const ir::Node& node) {
  std::vector<ir::ValueId> values = {node.input(0)};
  for (const size_t index : {1, 3, 2}) {
    if (index < node.inputs.size() && node.inputs[index] != ir::kNoValue) {
      values.push_back(node.inputs[index]);
    }
  }
  values.push_back(node.output(0));
  return values;
}

// Filters as the graph reads them.
BufferArgument filter_of(const ir::Graph& graph, const ir::Node& node, Lowered& lowered) {
  const ir::ValueId id = node.input(1);
  if (!node.is(ir::kChannelsLastConv)) return BufferArgument::value(id);
  const ir::TensorPtr w = graph.value(id).constant;
  if (!cudnn::differs_with_channels_last(*w)) return BufferArgument::value(id);
  lowered.packed.push_back(cudnn::filter_with_channels_last(w));
  lowered.replaced_constants.push_back(id);
  return BufferArgument::packed(static_cast<int32_t>(lowered.packed.size()) - 1);
}

Lowered lower(const ir::Graph& graph, const ir::Node& node,
              const std::shared_ptr<const LibraryCall>& call, std::vector<SizeCheck> sizes) {
  Lowered lowered;
  lowered.sizes = std::move(sizes);
  const Shape& x = *graph.value(node.input(0)).shape;
  const Shape& y = *graph.value(node.output(0)).shape;
  Dim workspace = kSpareWorkspace;
  std::vector<BufferArgument> buffers;
  for (const ir::ValueId id : buffers_of(node)) {
    buffers.push_back(id == node.input(1) ? filter_of(graph, node, lowered)
                                          : BufferArgument::value(id));
    const ir::Value& value = graph.value(id);
    workspace = workspace + element_count(*value.shape) * storage_bytes(value.dtype, 1);
  }
  buffers.push_back(lowered.add_scratch(workspace));
  Launch launch = Launch::library(call, std::move(buffers), call->form().writes());
  launch.indices = x;
  launch.indices.insert(launch.indices.end(), y.begin(), y.end());
  launch.indices.push_back(workspace);
  const Dim is_any = min(element_count(y), 1);
  launch.tasks = launch.tasks * is_any;
  lowered.sizes.push_back({is_any, ir::Relation::kAtMost, element_count(x)});
  lowered.launches.push_back(std::move(launch));
  return lowered;
}

// x and y: their dims are the sizes of the problem. `wanted`: what they must be beyond.
Planned plan_call(const ir::Graph& graph, const ir::Node& node, const Settings& settings,
                  cudnn::Problem problem, cudnn::Rules rules, std::vector<SizeCheck> wanted = {}) {
  std::vector<int64_t> sizes = sample_of(*graph.value(node.input(0)).shape);
  std::ranges::copy(sample_of(*graph.value(node.output(0)).shape), std::back_inserter(sizes));
  if (std::ranges::any_of(sizes, [](int64_t dim) { return dim <= 0; })) {
    return Planned::no("it has nothing to compute");
  }
  const Verdict verdict = ask_once(cudnn::graph_of(problem, sizes), *settings.gpu, rules);
  if (!verdict.support) return verdict.support;
  std::vector<PlannedKernel> kernels = kernels_of(verdict.engines, settings.tuning);
  const KernelConfig& taken = kernels.front().config;
  rules.wanted = {taken.find(Knob::kEngine).value(), taken.find(Knob::kEngineNumber).value()};
  const auto call = std::make_shared<const cudnn::GraphCall>(
      &cudnn::library().functions, settings.device_ordinal, std::move(problem), rules);
  return Plan{.ranges = {{{}, std::move(kernels)}},
              .lower = [&graph, &node, call, wanted] { return lower(graph, node, call, wanted); }};
}

Planned plan_convolution(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (Support answer = may_use_cudnn(settings); !answer) return answer;
  if (node.is(ir::kChannelsLastConv)) {
    if (Support answer = may_be_channels_last(graph, node, settings); !answer) return answer;
  }
  cudnn::ConvolutionAnswer answer = cudnn::convolution_of(graph, node);
  if (!answer.support) return answer.support;
  cudnn::Rules rules;
  rules.tensor_cores =
      answer.convolution.dtype != DType::kF32 || settings.precision == Precision::kTf32;
  // A sum and a Relu by kernels of ours are better than a slow engine.
  rules.only_fast = answer.convolution.is_fused();
  return plan_call(graph, node, settings, std::move(answer.convolution), rules);
}

Planned plan_pooling(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (Support answer = may_use_cudnn(settings); !answer) return answer;
  cudnn::PoolingAnswer answer = cudnn::pooling_of(graph, node);
  if (!answer.support) return answer.support;
  return plan_call(graph, node, settings, std::move(answer.pooling), {}, std::move(answer.sizes));
}

}  // namespace

Support may_use_cudnn(const Settings& settings) {
  if (!settings.cudnn) return Support::no("only cuDNN runs it, and enable_cudnn is 0");
  if (settings.emulate) return Support::no("cuDNN runs on a GPU only");
  const cudnn::LibraryAnswer& library = cudnn::library();
  if (!library.support || settings.device_ordinal < 0) return library.support;
  device::Device::open(settings.device_ordinal)->make_current();
  return cudnn::runs_on(library.functions, settings.device_ordinal);
}

std::shared_ptr<const LibraryCall> saved_cudnn_call(std::string_view bytes,
                                                    std::span<const Dim> sizes,
                                                    const Settings& settings) {
  const cudnn::Functions& functions = cudnn::library().functions;
  auto call = cudnn::GraphCall::from_saved(bytes, &functions, settings.device_ordinal);
  const int major = codegen::arch_spec(settings.gpu->arch).compute_major;
  const Support taken = cudnn::takes(call->problem(), sizes, functions.version, major);
  if (!taken) throw UserError(fmt::format("{}: {}", call->name(), taken.reason));
  return call;
}

Support ask_cudnn(const cudnn::Graph& graph, const Settings& settings, const cudnn::Rules& rules) {
  if (Support answer = may_use_cudnn(settings); !answer) return answer;
  return ask_once(graph, *settings.gpu, rules).support;
}

std::span<const Candidate> cudnn_convolution_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"cudnn", plan_convolution}}};
  return table;
}

std::span<const Candidate> cudnn_pooling_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"cudnn", plan_pooling}}};
  return table;
}

}  // namespace tenon::kernels
