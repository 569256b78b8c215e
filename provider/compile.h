// Read first: the whole flow on one screen.
//
//   OrtGraph --import--> ir::Graph --partition--> claims                          (GetCapability)
//   OrtGraph --import--> ir::Graph --fuse--> fused nodes --build--> Executable    (Compile)
//   ep.context_enable: the built program also goes into a context (context_output.h) an EPContext
//   node of ours: its program is opened, not built                   (context_input.h)
//
// Compile gets each claimed subgraph back from the runtime and runs the same pure functions again.
// Nothing is kept between the two calls but what the whole graph knows of a subgraph's inputs
// (claimed_inputs.h).
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>

#include "base/disk_cache.h"
#include "graph_partitioner/partition.h"
#include "kernels/running/collective_memory.h"
#include "kernels/running/executable.h"
#include "kernels/running/program.h"
#include "provider/claimed_inputs.h"
#include "provider/import_graph.h"
#include "provider/report.h"
#include "provider/target.h"

namespace tenon::provider {

struct Claims {
  ImportedGraph imported;
  Partitioning partitioning;
};

// `to_context`: the claims are for a context model.
Claims claim(const OrtGraph& graph, const Options& options, const Target& target,
             bool to_context = false);

struct CompiledPartition {
  std::unique_ptr<kernels::Executable> executable;
  std::vector<std::string> input_names;  // of the executable, in order
  std::vector<std::string> output_names;
  // Defaults that were packed, with copies to compare with what Run brings.
  struct Default {
    std::string name;
    ir::TensorPtr value;
  };
  std::vector<Default> defaults;
  PartitionReport report;
};

class ContextOutput;

// A session that writes a context model: for whom, and whether it runs itself.
struct ContextWork {
  ContextOutput& output;
  const std::vector<Target>& further;  // beside the session's own target
  bool runs = true;
};
// `cache`: of compiled kernels; null: none. With a context the partition is added to it, as
// compiled for each target.
CompiledPartition compile(const OrtGraph& graph, std::string_view name,
                          const ClaimedInputs& claimed, const Options& options,
                          const Target& target, std::shared_ptr<DiskCache> cache,
                          const ContextWork* context = nullptr);

// The program on the target's device.
std::unique_ptr<kernels::Executable> make_executable(
    kernels::Program program, const kernels::Settings& settings, const Options& options,
    const Target& target, std::shared_ptr<kernels::CollectiveMemory> collective_memory = nullptr);
// Fills the report from the executable.
void describe(std::string_view name, double milliseconds, CompiledPartition& partition);

}  // namespace tenon::provider
