// What was claimed, what was not and why, which kernel runs each fusion: one value, filled by
// GetCapability and Compile, written as JSON to `report_file` after each.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/disk_cache.h"
#include "codegen/target.h"
#include "distributed/sharding/report.h"
#include "kernels/autotune/tuning_record.h"
#include "kernels/device/description.h"
#include "kernels/running/executable.h"
#include "provider/options.h"

namespace tenon::provider {

// The context that a partition was opened from.
struct OpenedContext {
  std::string origin;      // its file
  uint64_t bytes = 0;      // of it
  std::string recompiled;  // why kernels were compiled again; empty: they were not
  size_t nodes = 0;        // that the partition was made of
  std::vector<std::string> weight_files = {};  // that weights were read from; none: its own
};

// The contexts that a session wrote.
struct WrittenContext {
  std::string file;  // beside the context model; empty: inside of it
  uint64_t bytes = 0;
  std::vector<std::string> targets;      // "sm_90a", "x86_64"
  size_t kernels = 0, machine_code = 0;  // of all programs, and those that have it
  bool weights_outside = false;
  std::string cudnn;                   // its version, where they call it
  std::set<std::string> weight_files;  // that it needs, relative to the model
};

struct PartitionReport {
  std::string name;
  std::vector<std::string> nodes, inputs, outputs;
  size_t weight_bytes = 0, packed_bytes = 0;
  double compile_ms = 0;
  std::vector<kernels::BuildPhase> phases;
  std::vector<kernels::FusionReport> fusions;
  std::vector<kernels::KernelReport> kernels;
  // Products of one input that no kernel of the device runs as one.
  struct Apart {
    std::string products, reason;
  };
  std::vector<Apart> apart;
  std::optional<distributed::ShardingReport> sharding;  // empty: one rank runs it all
  std::string plain_memory;  // why windows that were asked for are not there. Not written
  std::vector<std::string> node_names;   // imported node id -> name, for the fusions' sources
  std::shared_ptr<const void> words;     // what verdicts of a context refer to
  std::optional<OpenedContext> context;  // empty: it was compiled in this session
};

// Nodes in the middle of a graph that are left to the CPU by a session for a GPU: tensors that
// every Run copies there and back. The nodes' own time there comes on top.
struct CutCost {
  std::vector<std::string> nodes;       // that are read or written across: "TopK 'route'"
  size_t to_cpu = 0, to_gpu = 0;        // tensors
  uint64_t bytes = 0;                   // of those whose sizes are known before Run
  std::vector<std::string> open_sizes;  // the others: "f32[batch,64]", each once
  double microseconds = 0;              // of one Run, for the bytes that are known

  std::string text() const;  // a sentence
};

struct GraphReport {
  std::string key;  // tells graphs of one name apart; not written
  std::string name;
  int nodes = 0, claimed = 0;
  double claim_ms = 0;  // what it took to decide
  std::vector<PartitionReport> partitions;
  struct LeftOut {
    std::string node, op, reason;
    bool stranded = false;  // no stock provider has a kernel for it either
  };
  std::vector<LeftOut> left_out;
  std::optional<CutCost> cuts;  // of a session for a GPU; empty: nothing is copied
  std::string refusal;  // why its claims cannot become a context; empty: they can. Not written
  std::map<std::string, std::string> tensors;  // no constants: "h" is "f16[batch,64]"
};

// Of the kernel cache, by what was looked for: `ptx` is what LLVM makes, `cubin` what nvJitLink
// does.
struct CacheReport {
  std::string folder;
  std::map<std::string, DiskCache::Counts> counts;
  std::vector<std::string> problems;
};

// The session's tuning records.
struct TuningReport {
  std::string file;
  kernels::TuningMachine machine;
  size_t usable = 0;  // measured on such a machine
  std::vector<std::string> problems;
};

struct Report {
  codegen::HostTarget host;
  std::optional<device::Description> gpu;  // empty: the session runs on the host
  bool gpu_is_here = false;                // false: code is made for such a GPU, nothing runs
  std::optional<uint64_t> cost_seed;       // a test asked for random factors of the cost model
  std::string device;                      // of the two, as a summary names it
  Options options;
  std::optional<CacheReport> cache;       // empty: there is none
  std::optional<TuningReport> tuning;     // empty: there are no records
  std::optional<WrittenContext> context;  // empty: none was written
  std::vector<GraphReport> graphs;

  // The runtime asks again about a graph whose functions it inlined: the last answer counts. What
  // was compiled in between stands in the graph as a node each, which `graph` does not count: those
  // partitions are kept, with the nodes that they are made of.
  const GraphReport& replace(GraphReport graph);
  // The partition that claimed this node. Throws InternalError when none did.
  PartitionReport& partition_of(const std::string& node);
  // "[Tenon EP] main: 96 of 98 nodes in 1 partition on NVIDIA H200 (sm_90a); 2 left to …"
  std::string summary(const GraphReport& graph) const;
  std::string json() const;
  // Published by rename. Throws UserError when the file cannot be written.
  void write() const;
};

}  // namespace tenon::provider
