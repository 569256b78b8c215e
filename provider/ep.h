// One session's provider: GetCapability and Compile, and what they share (options, report).
#pragma once

#include <onnxruntime_c_api.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/disk_cache.h"
#include "provider/claimed_inputs.h"
#include "provider/compile.h"
#include "provider/context_settings.h"
#include "provider/exclusions.h"
#include "provider/gpus.h"
#include "provider/memcpy_kernels.h"
#include "provider/options.h"
#include "provider/report.h"
#include "provider/session_graph.h"
#include "provider/target.h"

namespace tenon::provider {

class ContextInput;
class ContextOutput;
class NodeCompute;

class Ep : public OrtEp {
 public:
  Ep(Options options, ContextSettings context, Target target, const OrtLogger& logger);

 private:
  void set_session_callbacks();
  void set_gpu_callbacks();
  void set_host_callbacks();
  void set_graph_callbacks();
  void get_capability(const OrtGraph& graph, OrtEpGraphSupportInfo& support);
  void keep(GraphReport graph);
  void warn_of_stranded(const GraphReport& graph);
  void warn_of_cuts(const GraphReport& graph);
  void warn_of_idle_exclusions();
  void warn_of_exclusions_that_waited();
  void warn_once(const std::string& message);
  void tell_of(const PartitionReport& partition);
  void tell_of_cache();
  void tell_of_records();
  std::optional<std::string> find_refusal();
  const char* describe_contexts();
  void session_ends_initialization();
  void agree_that_all_is_compiled();
  void compile(const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
               OrtNodeComputeInfo** computes, OrtNode** context_nodes);
  CompiledPartition compile_one(const OrtGraph& graph, const OrtNode& fused_node,
                                const Target& target, ContextInput& input, ContextOutput* output);
  void run_starts(const OrtRunOptions& run_options);
  void wait_for_callers() const;
  void run_ends(const OrtRunOptions& run_options, bool wait);
  std::optional<device::StreamHandle> users_stream() const;
  OrtSyncStreamImpl* create_stream() const;
  OrtAllocator* create_allocator(const OrtMemoryInfo& info) const;
  void log(OrtLoggingLevel level, const std::string& message) const;

  const Options options_;
  const ContextSettings context_;
  const Target target_;
  const std::vector<Target> further_targets_;  // of a context model
  const OrtLogger& logger_;
  const std::shared_ptr<DiskCache> cache_;       // of compiled kernels; null: none
  MemoryInfo host_memory_{nullptr, nullptr};     // where nodes read and write, on the CPU
  std::optional<MemcpyKernels> memcpy_kernels_;  // on a GPU of this machine
  std::optional<SessionGraph> session_graph_;    // with cuda_graph_scope=session
  std::mutex mutex_;                             // sessions may compile on several threads
  Report report_;
  Exclusions exclusions_;
  std::atomic<bool> exclusions_wait_ = false;  // for functions that the runtime may inline
  std::set<std::string> warned_;  // the runtime asks for one graph's claims more than once
  int partitions_ = 0;
  bool all_is_compiled_ = false;  // as all ranks agreed
  // GetCapability cannot fail a session (its errors are only logged): what must fail is kept for
  // Compile, or for the first Run where nothing was compiled.
  std::optional<std::string> refusal_;
  bool refusal_may_pass_ = false;         // when functions are inlined: the session's end decides
  std::vector<NodeCompute*> computes_;    // the runtime's, as long as it keeps them
  std::vector<std::string> kept_values_;  // that a context model must not lose
  std::string contexts_text_;             // the runtime copies it
  ClaimedInputs claimed_inputs_;
};

}  // namespace tenon::provider
