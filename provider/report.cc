#include "provider/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/publish_file.h"
#include "codegen/arch_spec.h"
#include "kernels/planning/gpu_link.h"
#include "provider/api.h"
#include "provider/cost_report.h"

namespace tenon::provider {
namespace {

using Json = nlohmann::ordered_json;

// What only a launch that multiplies has is left out elsewhere.
Json to_json(const kernels::LaunchReport& launch) {
  const bool multiplies = launch.tile_columns > 0;
  Json written = {{"kernel", launch.kernel}, {"isa", launch.isa}};
  if (multiplies) {
    written["tile_rows"] = launch.tile_rows;
    written["tile_columns"] = launch.tile_columns;
    written["weight_bytes"] = launch.weight_bytes;
  }
  written["work"] = Json::array();
  for (const kernels::LaunchReport::Work& at : launch.work) {
    Json work = Json::object();
    if (at.rows > 0) work["rows"] = at.rows;
    work["tasks"] = at.tasks;
    if (multiplies) work["flops"] = at.flops;
    work["compute_us"] = at.compute_us;
    written["work"].push_back(work);
  }
  return written;
}

// Texts for eyes, numbers for programs.
Json to_json(const kernels::ConfigChoice& choice) {
  const kernels::PlannedKernel& chosen = choice.chosen;
  Json numbers = {{"skeleton", name(chosen.config.skeleton)}};
  for (const auto& [knob, value] : chosen.config.knobs) numbers[std::string(name(knob))] = value;
  if (chosen.microseconds > 0) numbers["microseconds"] = chosen.microseconds;
  const Dim& workspace = chosen.workspace_bytes;
  if (workspace.is_constant()) {
    numbers["workspace_bytes"] = workspace.value();
  } else {
    numbers["workspace_bytes"] = workspace.text();
  }
  Json others = Json::array();
  for (const auto& other : choice.others) others.push_back(other.text());
  return {{"problem", choice.problem},
          {"chosen", chosen.text()},
          {"config", numbers},
          {"others", others}};
}

// As a tuning record names it.
Json to_json(const kernels::TuningNote::Way& way) {
  Json knobs = Json::object();
  for (const auto& [knob, value] : way.kernel.config.knobs) {
    knobs[std::string(name(knob))] = value;
  }
  return {{"candidate", way.candidate},
          {"skeleton", name(way.kernel.config.skeleton)},
          {"knobs", knobs},
          {"microseconds", way.kernel.microseconds}};
}

Json to_json(const kernels::TuningNote& note) {
  Json ways = Json::array();
  for (const auto& way : note.ways) ways.push_back(to_json(way));
  const bool is_open = note.rows.last == kernels::RowRange::kNoLimit;
  return {{"rows", note.rows.text("rows")},
          {"first", note.rows.first},
          {"last", is_open ? 0 : note.rows.last},
          {"tuned", note.used},
          {"text", note.text},
          {"ways", ways}};
}

Json to_json(const kernels::FusionReport& fusion, const std::vector<std::string>& node_names,
             const std::optional<device::Description>& gpu) {
  Json nodes = Json::array();
  for (const int source : fusion.sources) nodes.push_back(node_names.at(source));
  Json candidates = Json::array();
  for (const kernels::Verdict& verdict : fusion.verdicts) {
    candidates.push_back({{"name", verdict.candidate},
                          {"ok", verdict.support.ok},
                          {"reason", verdict.support.reason}});
  }
  Json configs = Json::array();
  for (const kernels::ConfigChoice& config : fusion.configs) {
    configs.push_back(to_json(config));
  }
  Json launches = Json::array();
  for (const kernels::LaunchReport& launch : fusion.launches) launches.push_back(to_json(launch));
  Json tuning = Json::array();
  for (const kernels::TuningNote& note : fusion.tuning) tuning.push_back(to_json(note));
  return {{"name", fusion.name},
          {"kind", fusion.kind},
          {"tuning", tuning},
          {"fingerprint", fusion.fingerprint},
          {"nodes", nodes},
          {"problem", fusion.problem},
          {"chosen", fusion.chosen},
          {"candidates", candidates},
          {"configs", configs},
          {"launches", launches},
          {"note", fusion.note},
          {"microseconds", fusion.microseconds},
          {"extrapolates", gpu ? extrapolation_text(fusion, *gpu) : ""}};
}

Json to_json(const std::optional<OpenedContext>& context) {
  if (!context) return nullptr;
  return {{"origin", context->origin},
          {"bytes", context->bytes},
          {"recompiled", context->recompiled},
          {"nodes", context->nodes},
          {"weight_files", context->weight_files}};
}

Json to_json(const std::optional<WrittenContext>& context) {
  if (!context) return nullptr;
  return {{"file", context->file},
          {"bytes", context->bytes},
          {"targets", context->targets},
          {"kernels", context->kernels},
          {"machine_code", context->machine_code},
          {"weights_outside", context->weights_outside},
          {"weight_files", context->weight_files}};
}

Json to_json(const std::optional<distributed::ShardingReport>& sharding) {
  if (!sharding) return nullptr;
  Json exchanges = Json::array(), wholes = Json::array();
  for (const auto& exchange : sharding->exchanges) {
    exchanges.push_back({{"op", exchange.op},
                         {"behind", exchange.node},
                         {"dtype", name(exchange.dtype)},
                         {"elements", exchange.elements.text()},
                         {"bytes", exchange.bytes.text()}});
  }
  for (const auto& whole : sharding->wholes) {
    wholes.push_back({{"name", whole.name}, {"reason", whole.reason}, {"bytes", whole.bytes}});
  }
  Json caches = Json::array();
  for (const auto& cache : sharding->caches) {
    caches.push_back(
        {{"symbol", cache.symbol}, {"inputs", cache.inputs}, {"heads", cache.heads_by_rank}});
  }
  Json annotations = Json::array();
  for (const auto& one : sharding->annotations) {
    annotations.push_back({{"name", one.node}, {"asked", one.asked}, {"reason", one.reason}});
  }
  return {{"rank", sharding->rank},
          {"ranks", sharding->ranks},
          {"engine", sharding->engine},
          {"constant_bytes", sharding->constant_bytes},
          {"bytes_by_rank", sharding->bytes_by_rank},
          {"whole_bytes", sharding->whole_bytes},
          {"caches", caches},
          {"collectives", exchanges},
          {"replicated", wholes},
          {"annotations", annotations},
          {"tokens", sharding->tokens}};
}

Json to_json(const PartitionReport& partition, const std::optional<device::Description>& gpu) {
  Json fusions = Json::array();
  for (const auto& fusion : partition.fusions) {
    fusions.push_back(to_json(fusion, partition.node_names, gpu));
  }
  Json kernels = Json::array();
  for (const auto& kernel : partition.kernels) {
    kernels.push_back(
        {{"name", kernel.name}, {"compile_ms", kernel.compile_ms}, {"shared", kernel.is_shared}});
  }
  Json phases = Json::object();
  for (const auto& phase : partition.phases) phases[phase.name] = phase.milliseconds;
  Json apart = Json::array();
  for (const auto& [products, reason] : partition.apart) {
    apart.push_back({{"products", products}, {"reason", reason}});
  }
  return {{"name", partition.name},
          {"context", to_json(partition.context)},
          {"nodes", partition.nodes},
          {"inputs", partition.inputs},
          {"outputs", partition.outputs},
          {"weight_bytes", partition.weight_bytes},
          {"packed_bytes", partition.packed_bytes},
          {"compile_ms", partition.compile_ms},
          {"phases_ms", phases},
          {"kernels", kernels},
          {"fusions", fusions},
          {"apart", apart},
          {"sharding", to_json(partition.sharding)}};
}

Json to_json(const std::optional<CutCost>& cuts) {
  if (!cuts) return nullptr;
  return {{"nodes", cuts->nodes},
          {"to_cpu", cuts->to_cpu},
          {"to_gpu", cuts->to_gpu},
          {"bytes", cuts->bytes},
          {"open_sizes", cuts->open_sizes},
          {"microseconds", cuts->microseconds},
          {"text", cuts->text()}};
}

Json to_json(const GraphReport& graph, const std::optional<device::Description>& gpu) {
  Json partitions = Json::array();
  for (const auto& partition : graph.partitions) partitions.push_back(to_json(partition, gpu));
  Json left_out = Json::array();
  for (const auto& node : graph.left_out) {
    left_out.push_back({{"node", node.node}, {"op", node.op}, {"reason", node.reason}});
  }
  return {{"name", graph.name},          {"nodes", graph.nodes},     {"claimed", graph.claimed},
          {"claim_ms", graph.claim_ms},  {"partitions", partitions}, {"left_out", left_out},
          {"cuts", to_json(graph.cuts)}, {"tensors", graph.tensors}};
}

// Between GPUs of one machine, for predictions.
Json link_json(std::string_view arch) {
  const codegen::ArchSpec& spec = codegen::arch_spec(arch);
  const kernels::GpuLink link = kernels::gpu_link(spec.compute_major, spec.compute_minor);
  return {{"name", link.name},
          {"base_us", link.model.base_us},
          {"step_us", link.model.step_us},
          {"gigabytes_per_second", link.model.gigabytes_per_second},
          {"direct_us", link.model.direct_us}};
}

Json device_json(const Report& report) {
  if (!report.gpu) {
    return {{"kind", "cpu"},
            {"name", report.host.name},
            {"features", report.host.features},
            {"threads", report.host.threads}};
  }
  const device::Description& gpu = *report.gpu;
  Json device = {{"kind", "gpu"}, {"present", report.gpu_is_here}};
  if (report.gpu_is_here) device["name"] = gpu.name;
  device["arch"] = gpu.arch;
  if (report.gpu_is_here) {
    device["device_id"] = gpu.ordinal;
    device["pci_bus_id"] = gpu.pci_bus_id;
  }
  device["sm_count"] = gpu.sm_count;
  if (report.gpu_is_here) device["memory_bytes"] = gpu.memory_bytes;
  device.update(cost_model_json(gpu, report.gpu_is_here, report.cost_seed));
  device["link"] = link_json(gpu.arch);
  return device;
}

Json to_json(const std::optional<CacheReport>& cache) {
  if (!cache) return nullptr;
  Json written = {{"folder", cache->folder}, {"problems", cache->problems}};
  for (const auto& [kind, counts] : cache->counts) {
    written[kind] = {{"hits", counts.hits}, {"misses", counts.misses}};
  }
  return written;
}

Json to_json(const std::optional<TuningReport>& tuning) {
  if (!tuning) return nullptr;
  const kernels::TuningMachine& machine = tuning->machine;
  return {{"file", tuning->file},
          {"usable", tuning->usable},
          {"problems", tuning->problems},
          {"machine",
           {{"arch", machine.arch},
            {"sm_count", machine.sm_count},
            {"clock_mhz", machine.clock_mhz},
            {"name", machine.name}}},
          {"versions",
           {{"tenon", machine.tenon}, {"driver", machine.driver}, {"library", machine.library}}}};
}

}  // namespace

const GraphReport& Report::replace(GraphReport graph) {
  std::vector<PartitionReport> compiled;
  for (GraphReport& known : graphs) {
    if (known.key != graph.key) continue;
    for (PartitionReport& partition : known.partitions) {
      if (!partition.name.empty()) compiled.push_back(std::move(partition));
    }
    if (!compiled.empty()) graph.tensors.merge(known.tensors);
  }
  for (const PartitionReport& partition : compiled) {
    graph.nodes += static_cast<int>(partition.nodes.size());
    graph.claimed += static_cast<int>(partition.nodes.size());
  }
  graph.partitions.insert(graph.partitions.begin(), std::make_move_iterator(compiled.begin()),
                          std::make_move_iterator(compiled.end()));
  std::erase_if(graphs, [&](const GraphReport& known) { return known.key == graph.key; });
  return graphs.emplace_back(std::move(graph));
}

PartitionReport& Report::partition_of(const std::string& node) {
  for (GraphReport& graph : graphs) {
    for (PartitionReport& partition : graph.partitions) {
      // Bodies of control flow may use one name twice: those compiled already are not meant.
      if (!partition.name.empty()) continue;
      if (std::ranges::find(partition.nodes, node) != partition.nodes.end()) return partition;
    }
  }
  throw InternalError(fmt::format("node '{}' was compiled but never claimed", node));
}

std::string Report::summary(const GraphReport& graph) const {
  std::string text =
      fmt::format("[Tenon EP] {}: {} of {} nodes in {} partition{} on {}",
                  graph.name.empty() ? "graph" : graph.name, graph.claimed, graph.nodes,
                  graph.partitions.size(), graph.partitions.size() == 1 ? "" : "s", device);
  if (!graph.left_out.empty()) {
    const auto& first = graph.left_out.front();
    text += fmt::format("; {} left to other providers, the first: {} '{}' ({})",
                        graph.left_out.size(), first.op, first.node, first.reason);
  }
  return text;
}

std::string Report::json() const {
  Json graph_list = Json::array();
  for (const GraphReport& graph : graphs) graph_list.push_back(to_json(graph, gpu));
  const Json document = {{"schema", 1},
                         {"provider", "TenonExecutionProvider"},
                         {"version", TENON_VERSION},
                         {"runtime", runtime().release},
                         {"host", host.name},
                         {"device", device_json(*this)},
                         {"options", effective(options)},
                         {"cache", to_json(cache)},
                         {"tuning", to_json(tuning)},
                         {"context", to_json(context)},
                         {"graphs", graph_list}};
  // A model's names may hold any bytes: replace what is not UTF-8 instead of failing.
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

void Report::write() const {
  if (options.report_file.empty()) return;
  const Support written = publish_file(options.report_file, json() + '\n');
  if (!written) {
    throw UserError(
        fmt::format("report_file '{}' cannot be written: {}", options.report_file, written.reason));
  }
}

}  // namespace tenon::provider
