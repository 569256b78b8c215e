#include "provider/join_job.h"

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/planned_job.h"
#include "distributed/rank_device.h"
#include "kernels/autotune/tuning_records.h"

namespace tenon::provider {
namespace {

// What ranks must have been told alike: all but who they are and where they write.
std::string shared_options(const Options& options) {
  std::map<std::string, std::string> values = effective(options);
  for (const char* own :
       {"cache_dir", "collective_token", "device_id", "dump_dir", "report_file",
        "tensor_parallel_rank", "tune_file", "tune_log", "tune_plans", "user_compute_stream"}) {
    values.erase(own);
  }
  std::string text;
  for (const auto& [key, value] : values) text += fmt::format("{}={} ", key, value);
  return text;
}

void require_backend(const std::string& backend, bool on_gpu) {
  if (backend == "auto" || (backend == "nccl") == on_gpu) return;
  throw UserError(fmt::format(
      "collective_backend={} exchanges memory of {}s, and this session is on a {}: leave it out, "
      "or choose another OrtEpDevice",
      backend, on_gpu ? "CPU" : "GPU", on_gpu ? "GPU" : "CPU"));
}

}  // namespace

std::shared_ptr<distributed::Job> join_job(const Options& options, const Target& target,
                                           const ContextSettings& context) {
  if (options.tensor_parallel_plan) {
    return distributed::planned_job(options.tensor_parallel_rank,
                                    static_cast<int>(options.tensor_parallel_size));
  }
  if (options.tensor_parallel_size == 1) return nullptr;
  if (target.on_gpu() && !target.device) {
    throw UserError(
        "tensor_parallel_size: ranks run the model, and this session only compiles it for a GPU "
        "that is not here; leave the option out");
  }
  if (options.collective_deadline_ms == 0) {
    throw UserError("collective_deadline_ms=0: a wait for other ranks must be positive");
  }
  if (options.enable_cuda_graph && options.cuda_graph_scope == "session") {
    throw UserError(
        "tensor_parallel_size: nobody watches over ranks in a Run that the runtime replays; take "
        "cuda_graph_scope=partition");
  }
  require_backend(options.collective_backend, target.on_gpu());
  if (context.enable) {
    throw UserError(
        "tensor_parallel_size: context models are written by one rank; leave the option out");
  }
  distributed::JobOptions job;
  if (options.tensor_parallel_size > 1) {
    job.launch.size = static_cast<int>(options.tensor_parallel_size);
  }
  if (options.tensor_parallel_rank >= 0) job.launch.rank = options.tensor_parallel_rank;
  job.launch.address = options.collective_address;
  job.launch.token = options.collective_token;
  job.deadline = std::chrono::milliseconds(options.collective_deadline_ms);
  job.peer_memory = options.collective_peer_memory;
  job.orders_graphs = options.enable_cuda_graph;
  job.host_backend = options.collective_backend;
  job.facts.fields = {{"options", shared_options(options)}, {"version of Tenon", TENON_VERSION}};
  // Replicated values must have the same bits everywhere.
  job.facts.fields.push_back(
      {"tuning records", target.records ? target.records->digest() : "none"});
  return distributed::Job::join(
      job, distributed::launch_variables(),
      target.device ? distributed::make_rank_device(target.device) : nullptr);
}

}  // namespace tenon::provider
