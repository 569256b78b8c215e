#include "provider/compile.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/stopwatch.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/selector.h"
#include "provider/api.h"
#include "provider/dump.h"

namespace tenon::provider {

namespace {

// The op whose body this graph is; empty for a main graph.
std::string owner_op(const OrtGraph& graph) {
  const OrtNode* parent = nullptr;
  check(runtime().api->Graph_GetParentNode(&graph, &parent));
  const char* op = "";
  if (parent != nullptr) check(runtime().api->Node_GetOperatorType(parent, &op));
  return op;
}

Partitioning claim_nothing(const ir::Graph& graph, const std::string& reason) {
  Partitioning result;
  for (size_t i = 0; i < graph.order().size(); ++i) {
    result.left_out.push_back({static_cast<int>(i), reason});
  }
  return result;
}

}  // namespace

Claims claim(const OrtGraph& graph, const Options& options, const Target& target) {
  Claims claims{import_graph(graph), {}};
  // Bodies of control flow stay what they are. Those of other ops (SequenceMap) are functions that
  // the runtime inlines after claims were made, and then it does not know the fused node.
  const std::string owner = owner_op(graph);
  if (!owner.empty() && owner != "If" && owner != "Loop" && owner != "Scan") {
    claims.partitioning = claim_nothing(
        claims.imported.graph, "it stands in the body of " + owner + ", which the runtime inlines");
    return claims;
  }
  const kernels::Settings settings = target.settings(options);
  const SupportsFn supports = [&](const ir::Graph& fused, const ir::Node& node) {
    return kernels::supports(fused, node, settings);
  };
  const PartitionOptions rules{options.claim == "all", options.exclude_ops, options.exclude_nodes,
                               !target.on_gpu()};
  claims.partitioning = partition(claims.imported.graph, supports, rules);
  return claims;
}

namespace {

std::vector<std::string> names(const ir::Graph& graph, const std::vector<ir::ValueId>& values) {
  std::vector<std::string> result;
  for (const ir::ValueId id : values) result.push_back(graph.value(id).name);
  return result;
}

// The OrtGraph and its tensors die after Compile; what Run compares with must be our own.
std::vector<CompiledPartition::Default> copy_defaults(const ImportedGraph& imported) {
  std::vector<CompiledPartition::Default> defaults;
  for (const std::string& name : imported.assumed_defaults) {
    const ir::TensorPtr value = imported.graph.value(imported.graph.find(name)).constant;
    defaults.push_back(
        {name, ir::Tensor::copy(value->dtype, value->dims, {value->data, value->bytes})});
  }
  return defaults;
}

std::unique_ptr<kernels::Executable> build(ir::Graph fused, const Options& options,
                                           const Target& target, std::shared_ptr<DiskCache> cache,
                                           const codegen::StageSink& sink) {
  kernels::Settings settings = target.settings(options);
  settings.kernel_cache = std::move(cache);
  if (!target.on_gpu()) return kernels::build_on_host(fused, settings, sink);
  kernels::DeviceRunOptions run;
  run.graphs = options.enable_cuda_graph && options.cuda_graph_scope == "partition";
  run.memory_limit = options.memory_limit;
  run.deadline = std::chrono::milliseconds(options.run_deadline_ms);
  run.streams_last = options.has_user_compute_stream;
  return kernels::build_on_device(fused, settings, target.device, run, sink);
}

}  // namespace

CompiledPartition compile(const OrtGraph& graph, std::string_view name, const Options& options,
                          const Target& target, std::shared_ptr<DiskCache> cache) {
  const Stopwatch watch;
  const Dump dump(options.dump_dir, name);
  ImportedGraph imported = import_graph(graph);
  dump.graph("imported", imported.graph);

  CompiledPartition result;
  result.input_names = names(imported.graph, imported.graph.inputs());
  result.output_names = names(imported.graph, imported.graph.outputs());
  result.defaults = copy_defaults(imported);

  const kernels::Settings settings = target.settings(options);
  PartitionReport& report = result.report;
  const SupportsFn supports = [&](const ir::Graph& part, const ir::Node& node) {
    Support answer = kernels::supports(part, node, settings);
    if (!answer && target.on_gpu() && node.is(ir::kMergedDots)) {
      report.apart.push_back(
          {fmt::format("{}", fmt::join(names(part, node.outputs), ", ")), answer.reason});
    }
    return answer;
  };
  ir::Graph fused = fuse(std::move(imported.graph), dump.observer(), supports);
  report.phases.push_back({"fusions", watch.milliseconds()});
  result.executable =
      build(std::move(fused), options, target, std::move(cache), dump.kernel_sink());

  report.name = name;
  report.nodes = imported.node_names;
  report.node_names = imported.node_names;
  report.inputs = result.input_names;
  report.outputs = result.output_names;
  report.fusions = result.executable->fusions();
  report.kernels = result.executable->kernels();
  report.weight_bytes = result.executable->weight_bytes();
  report.packed_bytes = result.executable->packed_bytes();
  std::ranges::copy(result.executable->phases(), std::back_inserter(report.phases));
  report.compile_ms = watch.milliseconds();
  return result;
}

}  // namespace tenon::provider
