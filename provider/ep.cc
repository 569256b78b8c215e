#include "provider/ep.h"

#include <fmt/format.h>

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
    report.left_out.push_back({imported.node_names[left.source],
                               imported.graph.node(imported.graph.order()[left.source]).op,
                               left.reason});
  }
  return report;
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
  IsConcurrentRunSupported = [](OrtEp*, bool* supported) noexcept -> OrtStatus* {
    *supported = true;
    return nullptr;
  };
}

void Ep::log(OrtLoggingLevel level, const std::string& message) const {
  OrtStatus* status = runtime().api->Logger_LogMessage(&logger_, level, message.c_str(),
                                                       ORT_FILE, __LINE__, "Tenon");
  if (status != nullptr) runtime().api->ReleaseStatus(status);
}

void Ep::get_capability(const OrtGraph& graph, OrtEpGraphSupportInfo& support) try {
  const Claims claims = claim(graph, options_, settings_);
  const GraphReport report = describe(claims);
  const std::lock_guard lock(mutex_);
  report_.graphs.push_back(report);
  log(ORT_LOGGING_LEVEL_INFO, report_.summary(report));
  report_.write();

  const auto fuse = [&](const std::vector<int>& sources) {
    std::vector<const OrtNode*> nodes;
    for (const int source : sources) nodes.push_back(claims.imported.nodes[source]);
    OrtNodeFusionOptions fusion{};
    fusion.ort_version_supported = runtime().version;
    fusion.drop_constant_initializers = true;
    check(runtime().ep->EpGraphSupportInfo_AddNodesToFuse(&support, nodes.data(), nodes.size(),
                                                          &fusion));
  };
  if (options_.require_full_claim && !report.left_out.empty()) {
    refusal_ = "require_full_claim=1: " + report_.summary(report);
    fuse({0});  // any claim makes the runtime call Compile, which can refuse
    return;
  }
  for (const Partition& partition : claims.partitioning.partitions) fuse(partition.sources);
} catch (const UserError& error) {
  // An unwritable report_file must not end in a silent CPU session.
  const std::lock_guard lock(mutex_);
  refusal_ = error.what();
  size_t count = 0;
  check(runtime().api->Graph_GetNumNodes(&graph, &count));
  if (count == 0) return;
  std::vector<const OrtNode*> nodes(count);
  check(runtime().api->Graph_GetNodes(&graph, nodes.data(), count));
  check(runtime().ep->EpGraphSupportInfo_AddNodesToFuse(&support, nodes.data(), 1, nullptr));
}

void Ep::compile(const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
                 OrtNodeComputeInfo** computes) {
  const std::lock_guard lock(mutex_);
  if (refusal_) throw UserError(*refusal_);
  for (size_t i = 0; i < count; ++i) {
    const std::string name = fmt::format("tenon_{}", partitions_++);
    CompiledPartition compiled = provider::compile(*graphs[i], name, options_, settings_);
    report_.partition_of(compiled.report.nodes.front()) = compiled.report;
    log(ORT_LOGGING_LEVEL_INFO, fmt::format("[Tenon EP] {}: {} nodes, {} fusions, {:.0f} ms", name,
                                            compiled.report.nodes.size(),
                                            compiled.report.fusions.size(),
                                            compiled.report.compile_ms));
    computes[i] = new NodeCompute(std::move(compiled), *fused_nodes[i]);
  }
  report_.write();
}

}  // namespace tenon::provider
