#include "provider/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/autotune/tuning_file.h"
#include "kernels/device/driver.h"

namespace tenon::provider {

kernels::TuningMachine tuning_machine(const Target& target) {
  kernels::TuningMachine machine;
  machine.tenon = TENON_VERSION;
  if (!target.on_gpu()) {
    const bool is_x86 = target.host.arch == codegen::HostArch::kX86_64;
    machine.arch =
        fmt::format("{}{}{}", is_x86 ? "x86_64" : "aarch64",
                    target.host.features.empty() ? "" : "+", fmt::join(target.host.features, "+"));
    machine.sm_count = target.host.threads;
    machine.name = target.host.name;
    return machine;
  }
  const device::Description& gpu = *target.description;
  machine.arch = gpu.arch;
  machine.sm_count = gpu.sm_count;
  machine.clock_mhz = gpu.clock_mhz;
  machine.name = gpu.name;
  if (target.device) machine.driver = fmt::format("{}", device::driver().version);
  return machine;
}

std::shared_ptr<const kernels::TuningRecords> read_records(const Options& options,
                                                           const Target& target) {
  const bool has_records = options.tune != "off" && !options.tune_file.empty();
  if (options.require_tuned && !has_records) {
    throw UserError("require_tuned=1 needs records: give their file as tune_file, and tune=cached");
  }
  if (!has_records) return nullptr;
  kernels::TuningFile file = kernels::TuningFile::read(options.tune_file);
  return std::make_shared<const kernels::TuningRecords>(file.records, tuning_machine(target),
                                                        std::move(file.problems));
}

}  // namespace tenon::provider
