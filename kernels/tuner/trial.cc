#include "kernels/tuner/trial.h"

#include <fmt/format.h>

#include "kernels/running/device_executable.h"

namespace tenon::kernels {
namespace {

// Whether a device still does what it is told, after something on it did not end. Memory is not
// given back here: the driver would wait for all work.
bool answers(const std::shared_ptr<device::Device>& device, device::Address memory) {
  constexpr std::chrono::milliseconds kPatience{2'000};
  try {
    device::Stream stream(device);
    stream.fill(memory, 0, 1);
    stream.synchronize(kPatience);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::string_view name(TrialStatus status) {
  switch (status) {
    case TrialStatus::kOk:
      return "ok";
    case TrialStatus::kSlow:
      return "slow";
    case TrialStatus::kRefused:
      return "refused";
    case TrialStatus::kNotOffered:
      return "not_offered";
    case TrialStatus::kCompileFailed:
      return "compile_failed";
    case TrialStatus::kRunFailed:
      return "run_failed";
    case TrialStatus::kWrongResult:
      return "wrong_result";
    case TrialStatus::kOutOfBounds:
      return "out_of_bounds";
    case TrialStatus::kDeadline:
      return "deadline";
    case TrialStatus::kSpills:
      return "spills";
  }
  return "";
}

Trial::Trial(std::shared_ptr<device::Device> device, const codegen::GpuTarget& target,
             Program program, TrialMemory& memory, const TrialRules& rules,
             std::shared_ptr<DiskCache> kernel_cache, std::shared_ptr<WeightPool> weights)
    : device_(std::move(device)), memory_(memory), rules_(rules), bytes_(program.packed_bytes) {
  DeviceRunOptions options;
  options.graphs = true;
  options.replaces_failed_plans = false;  // by one that is another trial's
  options.streams_last = true;
  options.deadline = rules.deadline;
  options.kernel_cache = std::move(kernel_cache);
  options.weight_pool = std::move(weights);
  options.scratch = [redzones = memory.redzones()](size_t bytes, std::string_view what) {
    return redzones->make(bytes, std::string(what));
  };
  executable_ = run_on_device(std::move(program), target, device_, options);
}

void Trial::run() {
  executable_->run(memory_);
  try {
    memory_.own_stream().synchronize(rules_.deadline);
  } catch (const device::DeviceLost&) {
    throw;
  } catch (const UserError&) {
    is_stuck_ = true;
    throw;
  }
}

TrialFailure Trial::run_once() {
  try {
    memory_.reset();
    run();
    // Counters that a Run does not bring back to zero show in the next one.
    memory_.reset();
    run();
    executable_->check_finished();
  } catch (const device::DeviceLost& lost) {
    throw DeviceStuck(lost.what());
  } catch (const UserError& error) {
    if (!is_stuck_) return {TrialStatus::kRunFailed, error.what()};
    std::string reason =
        fmt::format("it was not done after {} ms", static_cast<long>(rules_.deadline.count()));
    if (!answers(device_, memory_.spare())) throw DeviceStuck(reason);
    return {TrialStatus::kDeadline, std::move(reason)};
  }
  if (std::string damage = memory_.redzones()->find_damage(); !damage.empty()) {
    return {TrialStatus::kOutOfBounds, std::move(damage)};
  }
  return {};
}

double Trial::microseconds(int runs, int copies) {
  device::Event first(device_, true), last(device_, true);
  device::Stream& stream = memory_.own_stream();
  stream.record(first);
  for (int i = 0; i < runs; ++i) executable_->run(memory_);
  stream.record(last);
  stream.synchronize(rules_.deadline);
  return 1000.0 * device::Event::milliseconds(first, last) / (runs * copies);
}

}  // namespace tenon::kernels
