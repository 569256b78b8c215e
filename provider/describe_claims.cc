#include "provider/describe_claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/known_ops.h"
#include "provider/context_node.h"
#include "provider/names.h"

namespace tenon::provider {
namespace {

// Ops and types that stock providers have no kernels for: left out, such a node ends the session.
bool is_stranded(const ir::Graph& graph, const ir::Node& node) {
  if (node.op.starts_with("trt::") || ir::is_imported_collective(node)) return true;
  return std::ranges::any_of(node.inputs, [&](ir::ValueId id) {
    if (id == ir::kNoValue) return false;
    const DType dtype = graph.value(id).dtype;
    return dtype == DType::kF4E2M1 || dtype == DType::kF8E8M0;
  });
}

// What is known of each tensor's type and sizes.
std::map<std::string, std::string> tensors_of(const ir::Graph& graph) {
  std::map<std::string, std::string> tensors;
  const auto add = [&](ir::ValueId id) {
    if (id == ir::kNoValue) return;
    const ir::Value& value = graph.value(id);
    if (value.is_constant() || value.name.empty()) return;
    tensors[value.name] = std::string(name(value.dtype)) + (value.shape ? text(*value.shape) : "");
  };
  for (const ir::ValueId input : graph.inputs()) add(input);
  for (const ir::NodeId node : graph.order()) {
    for (const ir::ValueId output : graph.node(node).outputs) add(output);
  }
  return tensors;
}

// A partition that was compiled before the runtime inlined functions and asked again.
bool is_own_partition(const ir::Node& node) {
  return node.op.starts_with(fmt::format("{}::", kProviderName));
}

}  // namespace

GraphReport describe(const Claims& claims) {
  const ImportedGraph& imported = claims.imported;
  GraphReport report;
  report.name = imported.graph.name;
  report.nodes = static_cast<int>(imported.nodes.size());
  for (const Partition& part : claims.partitioning.partitions) {
    PartitionReport& partition = report.partitions.emplace_back();
    for (const int source : part.sources) partition.nodes.push_back(imported.node_names[source]);
    report.claimed += static_cast<int>(part.sources.size());
  }
  for (const LeftOut& left : claims.partitioning.left_out) {
    const ir::Node& node = imported.graph.node(imported.graph.order()[left.source]);
    if (is_own_partition(node)) {
      --report.nodes;
      continue;
    }
    report.left_out.push_back({imported.node_names[left.source], node.op, left.reason,
                               is_stranded(imported.graph, node)});
  }
  report.tensors = tensors_of(imported.graph);
  return report;
}

std::vector<const OrtNode*> nodes_of(const OrtGraph& graph) {
  size_t count = 0;
  check(runtime().api->Graph_GetNumNodes(&graph, &count));
  std::vector<const OrtNode*> nodes(count);
  if (count > 0) check(runtime().api->Graph_GetNodes(&graph, nodes.data(), count));
  return nodes;
}

GraphReport nothing_claimed(const OrtGraph& graph, const std::string& reason) {
  const char* name = "";
  check(runtime().api->Graph_GetName(&graph, &name));
  GraphReport report;
  report.name = name;
  report.nodes = static_cast<int>(nodes_of(graph).size());
  report.left_out.push_back({name, "every node of the graph", reason});
  return report;
}

bool may_be_inlined(const GraphReport& graph) {
  const auto known = ir::known_ops();
  return std::any_of(graph.left_out.begin(), graph.left_out.end(), [&](const auto& left) {
    return std::ranges::find(known, left.op, &ir::KnownOp::op) == known.end();
  });
}

std::string why_no_context(const Claims& claims) {
  const ir::Graph& graph = claims.imported.graph;
  for (const Partition& partition : claims.partitioning.partitions) {
    std::set<ir::ValueId> made;
    for (const int source : partition.sources) {
      const ir::Node& node = graph.node(graph.order()[source]);
      if (node.op == kContextOp) {
        return fmt::format(
            "node '{}' is a context already: ep.context_enable=1 takes the model that it was "
            "compiled from",
            node.name);
      }
      for (const ir::ValueId input : node.inputs) {
        if (input == ir::kNoValue || made.contains(input)) continue;
        const ir::Value& value = graph.value(input);
        if (value.is_constant() || may_read(value.dtype)) continue;
        return fmt::format(
            "'{}' is {}, which no node of a context model can read (EPContext takes floats of 16 "
            "bits and more and integers of 8 bits and more): feed it as uint8 and cast inside of "
            "the model, or leave '{}' out with exclude_nodes",
            value.name, name(value.dtype), node.name);
      }
      made.insert(node.outputs.begin(), node.outputs.end());
    }
  }
  return "";
}

std::vector<std::string> read_by_bodies(const ir::Graph& graph) {
  std::vector<std::string> names;
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    if (node.op != "If" && node.op != "Loop" && node.op != "Scan") continue;
    for (const ir::ValueId input : node.inputs) {
      if (input == ir::kNoValue || !graph.value(input).is_constant()) continue;
      if (may_read(graph.value(input).dtype)) names.push_back(graph.value(input).name);
    }
  }
  return names;
}

}  // namespace tenon::provider
