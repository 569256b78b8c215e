// One way to run one kind of fused node. All candidates have this one signature; selector.cc holds
// the ordered tables.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/disk_cache.h"
#include "codegen/target.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/plan.h"

namespace tenon::kernels {

class Collectives;    // kernels/planning/collectives.h
class TuningRecords;  // kernels/autotune/tuning_records.h

// kInt8: activations of block-scaled dots may be int8. kTf32: both operands of dots of f32 with
// constant f32 weights may be rounded to tf32.
enum class Precision { kExact, kInt8, kTf32 };

// How some rows of a node are to run.
struct WantedKernel {
  std::string candidate;
  RowRange rows;
  KernelConfig config;
};

// What only tests, benchmarks, tuners and their records turn.
struct TuningOverrides {
  std::string candidate;                 // consider no other one; empty: all
  RowRange candidate_rows;               // and only for these rows; others take the rest
  int rank = 0;                          // which of a range's configs, best first
  int told = 4;                          // configs that a plan tells of a range
  std::vector<WantedKernel> kernels;     // of one node, whatever else it could take
  bool lists_all = false;                // what a tuner measures: also what no estimate takes
  bool reads_inputs_before_wait = true;  // what the caller brings is read before the wait of PDL
  bool neighbours = false;               // launches of other executables overlap these
  bool channels_last = true;             // of convolutions that gain by it, inside of a program
  bool padded_channels = true;           // and filled up with zeros where they are few
};

struct Settings {
  codegen::HostTarget host;
  std::optional<codegen::GpuTarget> gpu;  // where kernels run; empty: on the host
  // Kernels made for `gpu` are interpreted on the host (codegen/interpret.h): how tests judge them.
  bool emulate = false;
  Precision precision = Precision::kExact;
  TuningOverrides tuning = {};
  // What was measured of fusions; null: nothing. Without them, candidates go by their estimates.
  std::shared_ptr<const TuningRecords> records = {};
  bool require_tuned = false;  // a choice that no record made is an error
  // Where compiled kernels of a GPU are kept between processes; null: nowhere.
  std::shared_ptr<DiskCache> kernel_cache = {};
  // The ranks that this program runs on together; null: it is alone.
  std::shared_ptr<const Collectives> collectives = {};
  bool cudnn = false;              // on a GPU, calls of cuDNN may be made
  int device_ordinal = -1;         // which GPU of the driver's runs the calls; -1: none is here
  bool collective_overlap = true;  // on a GPU they may run beside other launches
  bool keep_texts = false;         // the program is to be saved (kernels/saved_program.h)
};

// Plans without making code: `plan` is asked of every node that might be claimed.
struct Candidate {
  std::string_view name;
  Planned (*plan)(const ir::Graph& graph, const ir::Node& node, const Settings& settings);
};

}  // namespace tenon::kernels
