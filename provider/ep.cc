#include "provider/ep.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "provider/api.h"
#include "provider/compile.h"
#include "provider/guard.h"
#include "provider/names.h"
#include "provider/node_compute.h"

namespace tenon::provider {
namespace {

Ep& self(OrtEp* ep) { return *static_cast<Ep*>(ep); }

kernels::Settings settings_from(const Options& options) {
  kernels::Settings settings;
  settings.host = codegen::detect_host();
  settings.precision =
      options.precision_mode == "int8" ? kernels::Precision::kInt8 : kernels::Precision::kExact;
  return settings;
}

// Ops and types that stock providers have no kernels for: left out, such a node ends the session.
bool is_stranded(const ir::Graph& graph, const ir::Node& node) {
  if (node.op.starts_with("trt::")) return true;
  return std::ranges::any_of(node.inputs, [&](ir::ValueId id) {
    if (id == ir::kNoValue) return false;
    const DType dtype = graph.value(id).dtype;
    return dtype == DType::kF4E2M1 || dtype == DType::kF8E8M0;
  });
}

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
    report.left_out.push_back({imported.node_names[left.source], node.op, left.reason,
                               is_stranded(imported.graph, node)});
  }
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

// The graph's name and the node that it is a body of.
std::string key_of(const OrtGraph& graph) {
  const OrtNode* parent = nullptr;
  const char *name = "", *parent_name = "";
  size_t parent_id = 0;
  check(runtime().api->Graph_GetName(&graph, &name));
  check(runtime().api->Graph_GetParentNode(&graph, &parent));
  if (parent == nullptr) return "";
  check(runtime().api->Node_GetName(parent, &parent_name));
  check(runtime().api->Node_GetId(parent, &parent_id));
  return fmt::format("{}/{}/{}", parent_name, parent_id, name);
}

void fuse(OrtEpGraphSupportInfo& support, const std::vector<const OrtNode*>& nodes) {
  OrtNodeFusionOptions fusion{};
  fusion.ort_version_supported = runtime().version;
  fusion.drop_constant_initializers = true;
  check(runtime().ep->EpGraphSupportInfo_AddNodesToFuse(&support, nodes.data(), nodes.size(),
                                                        &fusion));
}

// Any claim makes the runtime call Compile, which can refuse the session. Not a model's own
// function, though: the runtime inlines it only as long as nobody claims it.
void claim_something(const OrtGraph& graph, OrtEpGraphSupportInfo& support) {
  for (const OrtNode* node : nodes_of(graph)) {
    const char* domain = nullptr;
    check(runtime().api->Node_GetDomain(node, &domain));
    const std::string_view space = domain == nullptr ? "" : domain;
    if (space.empty() || space == "ai.onnx" || space == "com.microsoft" || space == "trt") {
      return fuse(support, {node});
    }
  }
}

}  // namespace

Ep::Ep(Options options, const OrtLogger& logger)
    : OrtEp{}, options_(std::move(options)), logger_(logger), settings_(settings_from(options_)) {
  report_.host = settings_.host;
  report_.options = options_;

  ort_version_supported = runtime().version;
  GetName = [](const OrtEp*) noexcept { return kProviderName; };
  GetCapability = [](OrtEp* ep, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
    return guarded([&] { self(ep).get_capability(*graph, *support); });
  };
  Compile = [](OrtEp* ep, const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
               OrtNodeComputeInfo** computes, OrtNode**) noexcept {
    return guarded([&] { self(ep).compile(graphs, fused_nodes, count, computes); });
  };
  ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** computes, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) delete static_cast<NodeCompute*>(computes[i]);
  };
  OnRunStart = [](OrtEp* ep, const OrtRunOptions*) noexcept {
    return guarded([&] {
      if (self(ep).refusal_) throw UserError(*self(ep).refusal_);
    });
  };
  IsConcurrentRunSupported = [](OrtEp*, bool* supported) noexcept -> OrtStatus* {
    *supported = true;
    return nullptr;
  };
}

void Ep::log(OrtLoggingLevel level, const std::string& message) const {
  OrtStatus* status = runtime().api->Logger_LogMessage(&logger_, level, message.c_str(), ORT_FILE,
                                                       __LINE__, "Tenon");
  if (status != nullptr) runtime().api->ReleaseStatus(status);
}

void Ep::get_capability(const OrtGraph& graph, OrtEpGraphSupportInfo& support) {
  Claims claims;
  GraphReport report;
  try {
    claims = claim(graph, options_, settings_);
    report = describe(claims);
  } catch (const std::exception& error) {
    // A fault of ours must not cost the session: others run the graph, and the report tells.
    claims = {};
    report = nothing_claimed(graph, error.what());
    log(ORT_LOGGING_LEVEL_WARNING, "[Tenon EP] " + report.left_out.front().reason);
  }
  report.key = key_of(graph);

  const std::lock_guard lock(mutex_);
  keep(std::move(report));
  for (const Partition& partition : claims.partitioning.partitions) {
    std::vector<const OrtNode*> nodes;
    for (const int source : partition.sources) nodes.push_back(claims.imported.nodes[source]);
    fuse(support, nodes);
  }
  if (refusal_ && claims.partitioning.partitions.empty()) claim_something(graph, support);
}

void Ep::keep(GraphReport graph) {
  log(ORT_LOGGING_LEVEL_INFO, report_.summary(graph));
  for (const auto& left : graph.left_out) {
    if (!left.stranded) continue;
    log(ORT_LOGGING_LEVEL_WARNING,
        fmt::format("[Tenon EP] {} '{}' is left out, and no stock provider runs it: {}", left.op,
                    left.node, left.reason));
  }
  report_.replace(std::move(graph));
  refusal_ = find_refusal();
}

std::optional<std::string> Ep::find_refusal() const {
  try {
    report_.write();
  } catch (const UserError& error) {
    return error.what();
  }
  if (!options_.require_full_claim) return std::nullopt;
  for (const GraphReport& graph : report_.graphs) {
    if (!graph.left_out.empty()) return "require_full_claim=1: " + report_.summary(graph);
  }
  return std::nullopt;
}

void Ep::compile(const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
                 OrtNodeComputeInfo** computes) {
  const std::lock_guard lock(mutex_);
  if (refusal_) throw UserError(*refusal_);
  for (size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("tenon_{}", partitions_++);
    CompiledPartition compiled = provider::compile(*graphs[i], name, options_, settings_);
    report_.partition_of(compiled.report.nodes.front()) = compiled.report;
    log(ORT_LOGGING_LEVEL_INFO,
        fmt::format("[Tenon EP] {}: {} nodes, {} fusions, {:.0f} ms", name,
                    compiled.report.nodes.size(), compiled.report.fusions.size(),
                    compiled.report.compile_ms));
    computes[i] = new NodeCompute(std::move(compiled), *fused_nodes[i]);
  }
  report_.write();
}

}  // namespace tenon::provider
