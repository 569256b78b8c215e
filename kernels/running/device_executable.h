// A partition that runs on a GPU: the same program as on the host, with device code, device memory
// and, where wanted, CUDA graphs.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>

#include "base/disk_cache.h"
#include "kernels/device/device.h"
#include "kernels/running/executable.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

class CollectiveMemory;
class CollectiveOrder;
class WeightPool;
class WrittenSizes;

struct DeviceRunOptions {
  bool graphs = false;                    // capture the launches of a shape that came before
  size_t memory_limit = 0;                // bytes for intermediate results; 0: as much as there is
  std::chrono::milliseconds deadline{0};  // for waits; 0: none
  bool streams_last = false;              // the callers' streams outlive the executable
  // Inputs are there before what is enqueued when a Run begins, so its launches may overlap that.
  // Others must come between two Runs of the executable: what a launch owns is used before its
  // wait.
  bool inputs_ready = false;
  std::shared_ptr<DiskCache> kernel_cache = {};  // as of Settings
  bool replaces_failed_plans = true;             // of libraries, else a Run fails with them
  bool pack_on_host = false;                     // all weights, those of pack kernels too
  std::shared_ptr<WeightPool> weight_pool = {};  // that weights are shared in; null: they are not
  std::shared_ptr<CollectiveMemory> collective_memory = {};  // null: all memory is plain
  std::shared_ptr<CollectiveOrder> collective_order = {};    // null: graphs may mix with launches
  std::shared_ptr<WrittenSizes> written_sizes = {};  // by partitions of one graph; null: one alone
  // Where arenas and counters are; empty: in plain memory.
  std::function<std::shared_ptr<void>(size_t bytes, std::string_view what)> scratch = {};
};

// Null device: run() throws a UserError that says the GPU is absent. Throws device::OutOfMemory
// naming the weight that does not fit.
std::unique_ptr<Executable> run_on_device(Program program, const codegen::GpuTarget& target,
                                          std::shared_ptr<device::Device> device,
                                          const DeviceRunOptions& options);

}  // namespace tenon::kernels
