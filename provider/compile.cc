#include "provider/compile.h"

#include <chrono>

#include "graph_partitioner/pipeline.h"
#include "provider/dump.h"

namespace tenon::provider {

Claims claim(const OrtGraph& graph, const Options& options, const kernels::Settings& settings) {
  Claims claims{import_graph(graph), {}};
  const SupportsFn supports = [&](const ir::Graph& fused, const ir::Node& node) {
    return kernels::supports(fused, node, settings);
  };
  const PartitionOptions rules{options.claim == "all", options.exclude_ops, options.exclude_nodes};
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

}  // namespace

CompiledPartition compile(const OrtGraph& graph, std::string_view name, const Options& options,
                          const kernels::Settings& settings) {
  const auto start = std::chrono::steady_clock::now();
  const Dump dump(options.dump_dir, name);
  ImportedGraph imported = import_graph(graph);
  dump.graph("imported", imported.graph);

  CompiledPartition result;
  result.input_names = names(imported.graph, imported.graph.inputs());
  result.output_names = names(imported.graph, imported.graph.outputs());
  result.defaults = copy_defaults(imported);

  ir::Graph fused = fuse(std::move(imported.graph), dump.observer());
  result.executable = kernels::Executable::build(std::move(fused), settings, dump.kernel_sink());

  PartitionReport& report = result.report;
  report.name = name;
  report.nodes = imported.node_names;
  report.node_names = imported.node_names;
  report.inputs = result.input_names;
  report.outputs = result.output_names;
  report.fusions = result.executable->fusions();
  report.weight_bytes = result.executable->weight_bytes();
  report.packed_bytes = result.executable->packed_bytes();
  report.compile_ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace tenon::provider
