// A compiled partition: launches, constants and a memory plan. Immutable once built; run() may be
// called from many threads at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/choice.h"

namespace tenon::kernels {

// Hears when each launch of a Run ran. Only while someone profiles: a GPU is waited for.
class LaunchObserver {
 public:
  using Time = std::chrono::steady_clock::time_point;
  virtual ~LaunchObserver() = default;
  virtual void launched(const std::string& fusion, Time start, Time end) = 0;
};

// What one Run brings along. The provider implements it over an OrtKernelContext.
class RunContext {
 public:
  virtual ~RunContext() = default;
  struct Input {
    const void* data = nullptr;
    std::span<const int64_t> dims;
  };
  virtual Input input(size_t index) = 0;
  virtual void* output(size_t index, std::span<const int64_t> dims) = 0;
  // Runs fn(first, last) over [0, total) on the runtime's threads, in up to `batches` ranges that
  // may or may not run at the same time.
  virtual void parallel_for(int64_t total, int64_t batches,
                            const std::function<void(int64_t, int64_t)>& fn) = 0;
  // The device stream (device::StreamHandle) that a Run on a GPU is ordered on; null on the host.
  virtual void* stream() { return nullptr; }
  virtual LaunchObserver* observer() { return nullptr; }
  // Something that the user should know of, though the Run goes on.
  virtual void warn(const std::string& /*message*/) {}
};

// What a launch on the host does, by the estimate that also deals its tasks to threads.
struct LaunchReport {
  std::string kernel;  // as KernelReport names it
  std::string isa;     // the instructions that do most of its work: "neon", "avx512vnni"
  // Of the launch that multiplies; 0 elsewhere.
  int tile_rows = 0, tile_columns = 0;
  int64_t weight_bytes = 0;
  // At sizes where it is not idle. Those that the model leaves open are 1, but for one that makes
  // many rows for a product.
  struct Work {
    int64_t rows = 0;  // of the product that the launch belongs to; 0: of none
    int64_t tasks = 0, flops = 0;
    double compute_us = 0;
  };
  std::vector<Work> work;
};

// One line of the report.
struct FusionReport {
  std::string name, kind, problem;
  std::vector<int> sources;
  std::string chosen;  // candidates
  std::vector<Verdict> verdicts;
  double microseconds = 0;  // expected at its fewest rows
  std::string note = {};    // of a collective: what a rule made of it, what it runs beside
  std::vector<ConfigChoice> configs = {};
  // Where there were tuning records:
  std::string fingerprint = {};
  std::vector<TuningNote> tuning = {};
  std::vector<LaunchReport> launches = {};  // on the host
};

// What a kernel cost to compile.
struct KernelReport {
  std::string name;
  double compile_ms = 0;
  bool is_shared = false;  // another session of the process had compiled it
};

// A part of what building took. Parts may have run side by side.
struct BuildPhase {
  const char* name;
  double milliseconds = 0;
};

class Executable {
 public:
  virtual ~Executable() = default;

  // Throws UserError when an input's shape contradicts the graph.
  virtual void run(RunContext& context) = 0;

  // Throws UserError where a Run went wrong in a way that only shows when its work is done: for a
  // caller who has waited for that.
  virtual void check_finished() {}

  virtual const std::vector<FusionReport>& fusions() const = 0;
  virtual const std::vector<KernelReport>& kernels() const = 0;
  virtual size_t weight_bytes() const = 0;  // constants as stored in the model
  virtual size_t packed_bytes() const = 0;  // constants as kept
  virtual const std::vector<BuildPhase>& phases() const = 0;
};

struct Program;

// On this machine's processor.
std::unique_ptr<Executable> run_on_host(Program program, int threads);

}  // namespace tenon::kernels
