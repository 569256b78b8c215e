// Provider options: one struct, one table. docs/options.md is its text for people.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tenon::provider {

struct Options {
  int device_id = -1;           // of the GPU; -1: the one that the session was given
  std::string target = "auto";  // auto | cpu | gpu; must not contradict the device
  // Compile for these GPUs: the first is the session's, the others go into its context model.
  // Empty: the session's own.
  std::vector<std::string> target_arch;
  std::string precision_mode = "exact";    // exact | int8 | tf32
  std::string claim = "gainful";           // gainful | all
  std::vector<std::string> exclude_ops;    // comma-separated op types
  std::vector<std::string> exclude_nodes;  // comma-separated node names
  bool require_full_claim = false;
  std::string contexts = "open";        // of a context model: open | refuse
  std::string context_weights = "map";  // that stand in a file: map | copy
  std::string dump_dir;                 // every stage of every kernel goes here
  std::string report_file;              // JSON: claims, reasons, fusions, kernels
  std::string tune = "cached";  // off | cached: by the records of tune_file | on: and measures
  std::string tune_file;        // of tuning records; empty: none
  std::string tune_log;         // of what was measured, as JSON lines; empty: none
  uint64_t tune_plans = 8;      // configs of a kernel that are measured first for a range of rows
  bool deterministic = false;   // no choice depends on what was measured
  bool require_tuned = false;

  // Several ranks that run one model.
  uint64_t tensor_parallel_size = 1;        // 0: as many as the launcher started
  int tensor_parallel_rank = -1;            // -1: as the launcher says
  bool tensor_parallel_plan = false;        // as that rank, without the others; nothing runs
  std::string collective_backend = "auto";  // auto | gloo | nccl | shm
  std::string collective_address;  // host:port where ranks meet; empty: as the launcher says
  std::string collective_token;    // that ranks show each other; empty: of the job and the user
  uint64_t collective_deadline_ms = 60'000;
  bool collective_overlap = true;      // on a GPU: collectives beside other launches
  bool collective_peer_memory = true;  // GPUs of one host sum what is small by themselves
  bool collective_windows = false;     // there: their memory is registered with NCCL

  // On a GPU only.
  std::string cache_dir;          // compiled kernels are kept there; empty: nowhere
  uint64_t cache_size_mb = 1024;  // that they may take
  bool has_user_compute_stream = false;
  uint64_t user_compute_stream = 0;  // a CUstream of the caller's, 0: the legacy default stream
  bool enable_cuda_graph = false;
  bool enable_cudnn = true;                    // where the library is there
  std::string cuda_graph_scope = "partition";  // partition | session
  uint64_t memory_limit = 0;                   // bytes of each arena; 0: as much as there is
  uint64_t run_deadline_ms = 0;                // for waits on the device; 0: none
};

// Bare keys and their values. Throws UserError listing what is valid.
Options parse_options(const std::map<std::string, std::string>& entries);
// Keys that differ from their defaults and do something on a GPU only, or on the CPU only.
std::vector<std::string> gpu_only(const Options& options);
std::vector<std::string> cpu_only(const Options& options);
// Keys whose values are written nowhere.
std::vector<std::string> secret_options();
// Every key with its effective value, for the report; of a secret "given", or nothing.
std::map<std::string, std::string> effective(const Options& options);

}  // namespace tenon::provider
