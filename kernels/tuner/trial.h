// One plan of a fusion, ready to be run, checked and timed.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "kernels/device/device.h"
#include "kernels/running/program.h"
#include "kernels/running/weight_pool.h"
#include "kernels/tunable_plans.h"
#include "kernels/tuner/trial_memory.h"

namespace tenon::kernels {

// What became of a plan; the names stand in logs.
enum class TrialStatus : uint8_t {
  kOk,
  kSlow,  // so much slower than another that it was not measured again
  kRefused,
  kNotOffered,  // in a graph of its fusion alone
  kCompileFailed,
  kRunFailed,
  kWrongResult,
  kOutOfBounds,
  kDeadline,
  kSpills,
};
std::string_view name(TrialStatus status);

struct TrialFailure {
  TrialStatus status = TrialStatus::kOk;
  std::string reason;
};

// The device does not answer any more, so no other plan can be tried in this process.
class DeviceStuck : public UserError {
 public:
  using UserError::UserError;
};

struct TrialRules {
  std::chrono::milliseconds deadline{10'000};  // for the launches of one Run
  int most_copies = 48;                        // of a fusion in a row
  int rounds = 7;                              // in which plans take turns
};

class Trial {
 public:
  Trial(std::shared_ptr<device::Device> device, const codegen::GpuTarget& target, Program program,
        TrialMemory& memory, const TrialRules& rules, std::shared_ptr<DiskCache> kernel_cache,
        std::shared_ptr<WeightPool> weights);
  Trial(const Trial&) = delete;

  // Runs it twice, the second time as it will be timed, and looks at every redzone. Behind a
  // deadline it must not be destroyed: an executable waits for its work, and this one's does not
  // end.
  TrialFailure run_once();
  // Of one copy of `copies`, in a CUDA graph, over this many Runs.
  double microseconds(int runs, int copies);
  size_t device_bytes() const { return bytes_; }

 private:
  void run();

  std::shared_ptr<device::Device> device_;
  TrialMemory& memory_;
  const TrialRules rules_;
  std::unique_ptr<Executable> executable_;
  size_t bytes_ = 0;
  bool is_stuck_ = false;
};

}  // namespace tenon::kernels
