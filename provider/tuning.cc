#include "provider/tuning.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/autotune/tuning_file.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/driver.h"
#include "kernels/tuner/tuner.h"

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

namespace {

// "cuDNN 9.14.0"; empty: it is not here. Loads it.
std::string library_text() {
  const cudnn::LibraryAnswer& library = cudnn::library();
  if (!library.support) return "";
  return "cuDNN " + cudnn::version_text(library.functions.version);
}

// Throws UserError where options contradict each other.
void check_options(const Options& options, const Target& target) {
  if (options.tune == "on") {
    if (options.deterministic) {
      throw UserError(
          "tune=on chooses by what it measures, and deterministic=1 forbids that: give "
          "one of them");
    }
    if (options.tensor_parallel_size > 1 && !options.tensor_parallel_plan) {
      throw UserError(
          "tune=on in each of several ranks would choose other kernels in each: tune one alone "
          "with tensor_parallel_plan=1, and give its file to all with tune=cached");
    }
    if (options.tune_file.empty()) {
      throw UserError("tune=on needs a file for its records: give it as tune_file");
    }
    if (!target.on_gpu()) {
      throw UserError(
          "tune=on measures on a GPU, and this session is on the CPU, where kernels go "
          "by estimate: choose a GPU (`tenon doctor` says what one lacks here), or leave tune out");
    }
    if (!target.device) {
      throw UserError(
          fmt::format("tune=on measures on the GPU, and this session is for {}: tune "
                      "where that is, and ship the file",
                      target.name()));
    }
  }
  if (options.tune != "on" && !options.tune_log.empty()) {
    throw UserError("tune_log is written by tune=on: give both, or neither");
  }
  if (options.tune != "on" && options.tune_plans != Options().tune_plans) {
    throw UserError("tune_plans is what tune=on measures: give both, or neither");
  }
}

bool is_absent(const std::string& path) {
  std::error_code ignored;
  return !std::filesystem::exists(path, ignored);
}

}  // namespace

std::shared_ptr<const kernels::TuningRecords> read_records(const Options& options,
                                                           const Target& target) {
  check_options(options, target);
  const bool has_records =
      options.tune != "off" && !options.tune_file.empty() && !options.deterministic;
  if (options.require_tuned && !has_records) {
    throw UserError(
        "require_tuned=1 needs records: give their file as tune_file, and tune=cached; "
        "deterministic=1 reads none");
  }
  if (!has_records || (options.tune == "on" && is_absent(options.tune_file))) return nullptr;
  kernels::TuningFile file = kernels::TuningFile::read(options.tune_file);
  kernels::TuningMachine here = tuning_machine(target);
  const bool has_calls = std::ranges::any_of(
      file.records, [](const auto& record) { return !record.machine.library.empty(); });
  if (has_calls && target.on_gpu() && options.enable_cudnn) here.library = library_text();
  return std::make_shared<const kernels::TuningRecords>(file.records, std::move(here),
                                                        std::move(file.problems));
}

std::shared_ptr<const kernels::TuningRecords> tune_partition(const ir::Graph& fused,
                                                             std::string_view partition,
                                                             const kernels::Settings& settings,
                                                             const Options& options,
                                                             const Target& target) {
  if (options.tune != "on") return settings.records;
  kernels::TuneLog log(options.tune_log);
  kernels::TuningWork work{std::string(partition), tuning_machine(target)};
  if (options.enable_cudnn) work.machine.library = library_text();
  kernels::Settings own = settings;
  own.records = read_records(options, target);  // with those of the partitions before
  if (own.records) work.known = kernels::TuningFile::read(options.tune_file).records;
  constexpr uint64_t kAll = std::numeric_limits<int>::max();
  work.options.told = static_cast<int>(std::min(options.tune_plans, kAll));
  // A job's ranks run one at a time only where they are one: sums of this rank alone would hang.
  work.options.whole_partition = !settings.collectives;
  work.keep = [&](const std::vector<kernels::TuningRecord>& records) {
    kernels::update_tuning_file(options.tune_file, records);
  };
  try {
    kernels::tune(fused, own, target.device, log, work);
  } catch (const kernels::DeviceStuck& stuck) {
    throw UserError(fmt::format(
        "a kernel that was tried for tuning has stopped the GPU for this process: {}. Open the "
        "session again with the same tune_file and tune_log: records are kept, and that kernel is "
        "left out{}",
        stuck.what(), options.tune_log.empty() ? " once tune_log names a file" : ""));
  }
  kernels::update_tuning_file(options.tune_file, {});
  return read_records(options, target);
}

}  // namespace tenon::provider
