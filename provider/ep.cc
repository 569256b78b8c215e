#include "provider/ep.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/stopwatch.h"
#include "codegen/cost_factors.h"
#include "distributed/job.h"
#include "provider/allocator.h"
#include "provider/api.h"
#include "provider/compatibility.h"
#include "provider/compile.h"
#include "provider/context_input.h"
#include "provider/context_node.h"
#include "provider/context_output.h"
#include "provider/cut_cost.h"
#include "provider/describe_claims.h"
#include "provider/guard.h"
#include "provider/names.h"
#include "provider/node_compute.h"
#include "provider/other_providers.h"
#include "provider/profiler.h"
#include "provider/stream.h"
#include "provider/tuning.h"

namespace tenon::provider {
namespace {

constexpr uint32_t kFirstWithSync = 25;               // ONNX Runtime 1.25
constexpr uint32_t kFirstWithInitializationEnd = 27;  // ONNX Runtime 1.27
constexpr uint32_t kFirstWithDefaultMemory = 27;

constexpr const char* kSecondRound =
    "ONNX Runtime inlined functions after Tenon had compiled a part of the model, and keeps the "
    "contexts of the last part only: inline the model's functions before (onnx.inliner), or leave "
    "session.disable_aot_function_inlining at 0";

Ep& self(OrtEp* ep) { return *static_cast<Ep*>(ep); }

// Host code is never kept: whoever can write the folder could otherwise run anything here.
std::shared_ptr<DiskCache> open_cache(const Options& options, const Target& target) {
  constexpr uint64_t kMegabyte = 1 << 20;
  if (!target.on_gpu() || options.cache_dir.empty()) return nullptr;
  const uint64_t most = std::numeric_limits<uint64_t>::max() / kMegabyte;
  return std::make_shared<DiskCache>(options.cache_dir,
                                     std::min(options.cache_size_mb, most) * kMegabyte);
}

std::unique_ptr<device::Stream> make_stream(const Options& options, const Target& target) {
  if (!options.has_user_compute_stream) return std::make_unique<device::Stream>(target.device);
  return std::make_unique<device::Stream>(
      target.device, reinterpret_cast<device::StreamHandle>(options.user_compute_stream));
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

std::string model_path_of(const OrtGraph& graph) {
  const ORTCHAR_T* path = nullptr;
  check(runtime().api->Graph_GetModelPath(&graph, &path));
  return path == nullptr ? "" : path;
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

Ep::Ep(Options options, ContextSettings context, Target target, const OrtLogger& logger)
    : OrtEp{},
      options_(std::move(options)),
      context_(std::move(context)),
      target_(std::move(target)),
      further_targets_(further_targets(options_)),
      logger_(logger),
      cache_(open_cache(options_, target_)),
      exclusions_(options_) {
  report_.host = target_.host;
  report_.gpu = target_.description;
  report_.gpu_is_here = target_.device != nullptr;
  if (report_.gpu) report_.cost_seed = codegen::cost_seed_of_environment();
  report_.device = target_.name();
  report_.options = options_;
  ort_version_supported = runtime().version;
  tell_of_records();
  begin_session();
  GetName = [](const OrtEp*) noexcept { return kProviderName; };
  set_session_callbacks();
  target_.device ? set_gpu_callbacks() : set_host_callbacks();
  if (session_graph_) set_graph_callbacks();
  if (const auto idle = target_.on_gpu() ? cpu_only(options_) : gpu_only(options_); !idle.empty()) {
    log(ORT_LOGGING_LEVEL_WARNING,
        fmt::format("[Tenon EP] the session is for {}, where these options do nothing: {}",
                    target_.on_gpu() ? "a GPU" : "the CPU", fmt::join(idle, ", ")));
  }
}

void Ep::set_session_callbacks() {
  GetCapability = [](OrtEp* ep, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
    return guarded([&] { self(ep).get_capability(*graph, *support); });
  };
  Compile = [](OrtEp* ep, const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
               OrtNodeComputeInfo** computes, OrtNode** context_nodes) noexcept {
    return guarded([&] { self(ep).compile(graphs, fused_nodes, count, computes, context_nodes); });
  };
  ReleaseNodeComputeInfos = [](OrtEp* ep, OrtNodeComputeInfo** computes, size_t count) noexcept {
    for (size_t i = 0; i < count; ++i) {
      std::erase(self(ep).computes_, static_cast<NodeCompute*>(computes[i]));
      delete static_cast<NodeCompute*>(computes[i]);
    }
  };
  OnRunStart = [](OrtEp* ep, const OrtRunOptions* options) noexcept {
    return guarded([&] { self(ep).run_starts(*options); });
  };
  if (runtime().version >= kFirstWithInitializationEnd) {
    OnSessionInitializationEnd = [](OrtEp* ep) noexcept {
      return guarded([&] { self(ep).session_ends_initialization(); });
    };
  }
  GetCompiledModelCompatibilityInfo = [](OrtEp* ep, const OrtGraph*) noexcept {
    return self(ep).describe_contexts();
  };
  CreateProfiler = [](OrtEp*, OrtEpProfilerImpl** profiler) noexcept {
    *profiler = nullptr;
    return guarded([&] { *profiler = new Profiler; });
  };
  IsConcurrentRunSupported = [](OrtEp* ep, bool* supported) noexcept -> OrtStatus* {
    // Ranks would order their collectives differently.
    *supported = !self(ep).session_graph_ && !self(ep).target_.job;
    return nullptr;
  };
}

// A session on the CPU may have been given a GPU as well, whose memory the runtime would take for
// our nodes' inputs and outputs.
void Ep::set_host_callbacks() {
  if (runtime().version < kFirstWithDefaultMemory) return;
  OrtMemoryInfo* info = nullptr;
  check(runtime().api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &info));
  host_memory_ = {info, [](OrtMemoryInfo* i) { runtime().api->ReleaseMemoryInfo(i); }};
  GetDefaultMemoryDevice = [](const OrtEp* ep,
                              const OrtMemoryDevice** device) noexcept -> OrtStatus* {
    *device =
        runtime().ep->MemoryInfo_GetMemoryDevice(static_cast<const Ep*>(ep)->host_memory_.get());
    return nullptr;
  };
}

void Ep::set_gpu_callbacks() {
  memcpy_kernels_.emplace(target_.device);
  if (options_.enable_cuda_graph && options_.cuda_graph_scope == "session") {
    session_graph_.emplace(target_.device, make_stream(options_, target_),
                           std::chrono::milliseconds(options_.run_deadline_ms));
  }
  CreateAllocator = [](OrtEp* ep, const OrtMemoryInfo* info, OrtAllocator** allocator) noexcept {
    *allocator = nullptr;
    return guarded([&] { *allocator = self(ep).create_allocator(*info); });
  };
  CreateSyncStreamForDevice = [](OrtEp* ep, const OrtMemoryDevice*,
                                 OrtSyncStreamImpl** stream) noexcept {
    *stream = nullptr;
    return guarded([&] { *stream = self(ep).create_stream(); });
  };
  GetKernelRegistry = [](OrtEp* ep, const OrtKernelRegistry** registry) noexcept -> OrtStatus* {
    *registry = self(ep).memcpy_kernels_->registry();
    return nullptr;
  };
  OnRunEnd = [](OrtEp* ep, const OrtRunOptions* options, bool wait) noexcept {
    return guarded([&] { self(ep).run_ends(*options, wait); });
  };
  // Callers make inputs on streams of their own, which nobody told us of.
  Sync = [](OrtEp* ep) noexcept {
    return guarded([&] { self(ep).target_.device->synchronize(); });
  };
}

// The runtime replays whole Runs: only on request, for it then skips our nodes and cannot see that
// a caller has bound other memory.
void Ep::set_graph_callbacks() {
  IsGraphCaptureEnabled = [](const OrtEp*) noexcept { return true; };
  IsGraphCaptured = [](const OrtEp* ep, int id) noexcept {
    return static_cast<const Ep*>(ep)->session_graph_->captured(id);
  };
  ReplayGraph = [](OrtEp* ep, int id) noexcept {
    return guarded([&] { self(ep).session_graph_->replay(id); });
  };
  ReleaseCapturedGraph = [](OrtEp* ep, int id) noexcept {
    return guarded([&] { self(ep).session_graph_->release(id); });
  };
}

void Ep::run_starts(const OrtRunOptions& run_options) {
  if (refusal_) throw UserError(*refusal_);
  if (target_.job) target_.job->require_alive();
  // A runtime without OnSessionInitializationEnd has no earlier moment.
  warn_of_exclusions_that_waited();
  agree_that_all_is_compiled();
  take_noted_streams();
  if (target_.device && !options_.has_user_compute_stream) wait_for_callers();
  if (session_graph_) session_graph_->start(run_options);
}

// What callers bound may still be on its way.
void Ep::wait_for_callers() const {
  // A runtime without OrtEp::Sync lets nobody ask for more.
  if (runtime().version < kFirstWithSync) return target_.device->synchronize();
  target_.device->wait_for_default_stream();
}

void Ep::run_ends(const OrtRunOptions& run_options, bool wait) {
  const std::vector<device::StreamHandle>& streams = take_noted_streams();
  if (session_graph_) session_graph_->end(run_options);
  // Partitions that ran on other threads left no note here.
  if (wait && streams.empty()) target_.gpu->synchronize();
  for (const device::StreamHandle handle : streams) {
    device::Stream stream(target_.device, handle);
    // Another provider's, which goes with this thread, and nobody tells us: memory that was used on
    // it is everyone's from here on.
    const bool foreign = !options_.has_user_compute_stream && !target_.gpu->has(handle);
    if (foreign && stream.capturing()) continue;
    if (foreign || wait) {
      stream.synchronize(std::chrono::milliseconds(options_.run_deadline_ms));
    }
    if (foreign) target_.gpu->forget(handle);
  }
  if (!wait) return;
  // A job that failed has ended what its GPUs waited for, with whatever was there.
  if (target_.job) target_.job->require_alive();
  for (NodeCompute* compute : computes_) compute->check_finished();
}

std::optional<device::StreamHandle> Ep::users_stream() const {
  if (!options_.has_user_compute_stream) return std::nullopt;
  return reinterpret_cast<device::StreamHandle>(options_.user_compute_stream);
}

OrtSyncStreamImpl* Ep::create_stream() const {
  std::optional<device::StreamHandle> borrowed = users_stream();
  if (session_graph_) borrowed = session_graph_->stream();
  return new SyncStream(*target_.gpu, target_.device, borrowed,
                        std::chrono::milliseconds(options_.run_deadline_ms));
}

OrtAllocator* Ep::create_allocator(const OrtMemoryInfo& info) const {
  return new Allocator(*target_.gpu, target_.gpu->own(info), options_.memory_limit);
}

void Ep::log(OrtLoggingLevel level, const std::string& message) const {
  OrtStatus* status = runtime().api->Logger_LogMessage(&logger_, level, message.c_str(), ORT_FILE,
                                                       __LINE__, "Tenon");
  if (status != nullptr) runtime().api->ReleaseStatus(status);
}

void Ep::get_capability(const OrtGraph& graph, OrtEpGraphSupportInfo& support) {
  const Stopwatch watch;
  Claims claims;
  GraphReport report;
  try {
    claims = claim(graph, options_, target_, context_.enable);
    report = describe(claims);
    if (target_.description) report.cuts = cut_cost(claims);
    if (context_.enable) report.refusal = why_no_context(claims);
  } catch (const std::exception& error) {
    // A fault of ours must not cost the session: others run the graph, and the report tells.
    claims = {};
    report = nothing_claimed(graph, error.what());
    log(ORT_LOGGING_LEVEL_WARNING, "[Tenon EP] " + report.left_out.front().reason);
  }
  report.key = key_of(graph);
  report.claim_ms = watch.milliseconds();
  if (!report.left_out.empty()) note_nodes_for_others();

  const std::lock_guard lock(mutex_);
  exclusions_.see(claims.imported.graph);
  if (context_.enable && report.key.empty()) kept_values_ = read_by_bodies(claims.imported.graph);
  // The main graph comes last, and again when functions were inlined.
  if (report.key.empty() && !claims.imported.nodes.empty()) {
    exclusions_wait_ = exclusions_.awaits_inlining();
    if (!exclusions_wait_) warn_of_idle_exclusions();
  }
  keep(std::move(report));
  claimed_inputs_.note(claims.imported.graph, claims.partitioning);
  for (const Partition& partition : claims.partitioning.partitions) {
    std::vector<const OrtNode*> nodes;
    for (const int source : partition.sources) nodes.push_back(claims.imported.nodes[source]);
    fuse(support, nodes);
  }
  if (refusal_ && !refusal_may_pass_ && claims.partitioning.partitions.empty()) {
    claim_something(graph, support);
  }
}

void Ep::keep(GraphReport graph) {
  const GraphReport& kept = report_.replace(std::move(graph));
  log(ORT_LOGGING_LEVEL_INFO, report_.summary(kept));
  warn_of_stranded(kept);
  warn_of_cuts(kept);
  refusal_ = find_refusal();
}

// One line for each reason: a model has hundreds of such nodes.
void Ep::warn_of_stranded(const GraphReport& graph) {
  constexpr size_t kNamed = 3;
  std::map<std::string, std::vector<std::string>> nodes_by_reason;
  for (const auto& left : graph.left_out) {
    if (!left.stranded) continue;
    nodes_by_reason[left.reason].push_back(fmt::format("{} '{}'", left.op, left.node));
  }
  for (auto& [reason, nodes] : nodes_by_reason) {
    const size_t count = nodes.size(), more = count - std::min(count, kNamed);
    nodes.resize(count - more);
    warn_once(fmt::format("{}{} {} left out, and no stock provider runs {}: {}",
                          fmt::join(nodes, ", "), more > 0 ? fmt::format(" and {} more", more) : "",
                          count == 1 ? "is" : "are", count == 1 ? "it" : "them", reason));
  }
}

// Where a GPU provider of the runtime's own stands behind, it runs what is left, on the GPU.
void Ep::warn_of_cuts(const GraphReport& graph) {
  if (!graph.cuts || !target_.device || shares_streams_with_stock_provider()) return;
  warn_once(fmt::format("{}; `tenon explain` says why {} left", graph.cuts->text(),
                        graph.cuts->nodes.size() == 1 ? "it is" : "they are"));
}

void Ep::warn_of_idle_exclusions() {
  for (const std::string& complaint : exclusions_.complaints()) warn_once(complaint);
}

// What looked like functions were custom ops: nothing was inlined, and nobody asked again.
void Ep::warn_of_exclusions_that_waited() {
  if (!exclusions_wait_ || !exclusions_wait_.exchange(false)) return;
  const std::lock_guard lock(mutex_);
  warn_of_idle_exclusions();
}

void Ep::warn_once(const std::string& message) {
  if (warned_.insert(message).second) log(ORT_LOGGING_LEVEL_WARNING, "[Tenon EP] " + message);
}

void Ep::tell_of_records() {
  if (!target_.records) return;
  const kernels::TuningRecords& records = *target_.records;
  report_.tuning = {options_.tune_file, records.machine(), records.usable(), records.problems()};
  for (const std::string& problem : records.problems()) warn_once(problem);
}

void Ep::tell_of_cache() {
  if (cache_ == nullptr) return;
  report_.cache = {cache_->folder(), cache_->counts(), cache_->problems()};
  for (const std::string& problem : report_.cache->problems) warn_once(problem);
  for (const auto& [kind, counts] : report_.cache->counts) {
    log(ORT_LOGGING_LEVEL_INFO, fmt::format("[Tenon EP] {} of kernels: {} from {}, {} made", kind,
                                            counts.hits, report_.cache->folder, counts.misses));
  }
}

void Ep::session_ends_initialization() {
  if (refusal_) throw UserError(*refusal_);
  warn_of_exclusions_that_waited();
  agree_that_all_is_compiled();
}

// A rank whose model has fewer partitions does not come to the others' Compile.
void Ep::agree_that_all_is_compiled() {
  if (!target_.job || std::exchange(all_is_compiled_, true)) return;
  target_.job->require_equal("Compile", {{{"model", "nothing more"}}});
}

std::optional<std::string> Ep::find_refusal() {
  refusal_may_pass_ = false;
  try {
    report_.write();
  } catch (const UserError& error) {
    return error.what();
  }
  for (const GraphReport& graph : report_.graphs) {
    if (!graph.refusal.empty()) return graph.refusal;
  }
  if (!options_.require_full_claim) return std::nullopt;
  for (const GraphReport& graph : report_.graphs) {
    if (graph.left_out.empty()) continue;
    const bool has_later_moment = runtime().version >= kFirstWithInitializationEnd;
    refusal_may_pass_ = has_later_moment && may_be_inlined(graph);
    return "require_full_claim=1: " + report_.summary(graph);
  }
  return std::nullopt;
}

CompiledPartition Ep::compile_one(const OrtGraph& graph, const OrtNode& fused_node,
                                  const Target& target, ContextInput& input,
                                  ContextOutput* output) {
  const std::string name = fmt::format("tenon_{}", partitions_++);
  if (const OrtNode* context = context_node_of(graph)) {
    return input.open(graph, *context, target, cache_);
  }
  if (output == nullptr) {
    return provider::compile(graph, name, claimed_inputs_, options_, target, cache_);
  }
  const ContextWork work{*output, further_targets_, !context_.compile_only};
  CompiledPartition compiled =
      provider::compile(graph, name, claimed_inputs_, options_, target, cache_, &work);
  output->add_node(name, compiled, fused_node);
  return compiled;
}

void Ep::compile(const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
                 OrtNodeComputeInfo** computes, OrtNode** context_nodes) {
  const std::lock_guard lock(mutex_);
  if (refusal_ && !refusal_may_pass_) throw UserError(*refusal_);
  ContextInput input(context_, options_);
  std::optional<ContextOutput> output;
  if (context_.enable && count > 0) {
    if (report_.context) throw UserError(kSecondRound);
    output.emplace(context_, model_path_of(*graphs[0]), kept_values_);
  }
  Target target = target_;
  target.written_sizes = std::make_shared<kernels::WrittenSizes>();  // the partitions of one graph
  for (size_t i = 0; i < count; ++i) {
    CompiledPartition compiled =
        compile_one(*graphs[i], *fused_nodes[i], target, input, output ? &*output : nullptr);
    report_.partition_of(compiled.report.nodes.front()) = compiled.report;
    tell_of(compiled.report);
    computes_.reserve(computes_.size() + 1);
    computes[i] = computes_.emplace_back(
        new NodeCompute(std::move(compiled), *fused_nodes[i], target_, users_stream()));
  }
  if (output) {
    std::ranges::copy(output->finish(), context_nodes);
    report_.context = output->report();
  }
  tell_of_cache();
  report_.write();
  if (output) output->keep();
}

// Empty where the session wrote none: the runtime then says nothing of us in the model.
const char* Ep::describe_contexts() {
  const OrtStatus* failed = guarded([&] {
    const std::lock_guard lock(mutex_);
    if (!report_.context) return;
    ContextOrigin origin;
    origin.version = TENON_VERSION;
    origin.targets = report_.context->targets;
    origin.weights_outside = report_.context->weights_outside;
    origin.cudnn = report_.context->cudnn;
    if (target_.on_gpu()) {
      origin.machine_code =
          fmt::format("{} of {}", report_.context->machine_code, report_.context->kernels);
    } else {
      origin.features = target_.host.features;
    }
    contexts_text_ = origin.text();
  });
  if (failed != nullptr) runtime().api->ReleaseStatus(const_cast<OrtStatus*>(failed));
  return contexts_text_.c_str();
}

void Ep::tell_of(const PartitionReport& partition) {
  log(ORT_LOGGING_LEVEL_INFO,
      fmt::format("[Tenon EP] {}: {} nodes, {} fusions, {:.0f} ms", partition.name,
                  partition.nodes.size(), partition.fusions.size(), partition.compile_ms));
  if (!partition.plain_memory.empty()) {
    warn_once("collective_windows=1 has no effect: " + partition.plain_memory);
  }
  if (!partition.context || partition.context->recompiled.empty()) return;
  warn_once(fmt::format("{} of {} was compiled again: {}", partition.name,
                        partition.context->origin, partition.context->recompiled));
}

}  // namespace tenon::provider
