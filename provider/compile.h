// Read first: the whole flow on one screen.
//
//   OrtGraph --import--> ir::Graph --partition--> claims                          (GetCapability)
//   OrtGraph --import--> ir::Graph --fuse--> fused nodes --build--> Executable    (Compile)
//
// Compile gets each claimed subgraph back from the runtime and runs the same pure functions again,
// so no map is kept between the two calls.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>

#include "base/disk_cache.h"
#include "graph_partitioner/partition.h"
#include "kernels/running/executable.h"
#include "provider/import_graph.h"
#include "provider/report.h"
#include "provider/target.h"

namespace tenon::provider {

struct Claims {
  ImportedGraph imported;
  Partitioning partitioning;
};

Claims claim(const OrtGraph& graph, const Options& options, const Target& target);

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

// `cache`: of compiled kernels; null: none.
CompiledPartition compile(const OrtGraph& graph, std::string_view name, const Options& options,
                          const Target& target, std::shared_ptr<DiskCache> cache);

}  // namespace tenon::provider
