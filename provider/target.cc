#include "provider/target.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/cost_factors.h"
#include "distributed/job.h"
#include "provider/tuning.h"

namespace tenon::provider {
namespace {

Target on_cpu(const Options& options) {
  if (options.device_id > 0) {
    throw UserError(fmt::format(
        "device_id={} contradicts the session's device, the CPU: choose a GPU's OrtEpDevice",
        options.device_id));
  }
  Target target;
  target.host = codegen::detect_host();
  if (options.target_arch.empty()) {
    if (options.target == "gpu") {
      throw UserError(
          "target=gpu contradicts the session's device, the CPU: choose a GPU's OrtEpDevice, or "
          "give target_arch to compile for a GPU that is not here");
    }
    return target;
  }
  if (options.target == "cpu") {
    throw UserError(
        fmt::format("target=cpu and target_arch={} contradict each other: leave one out",
                    fmt::join(options.target_arch, ",")));
  }
  target.description = device::named_description(options.target_arch.front());
  return target;
}

Target on_gpu(const Options& options, Gpu& gpu) {
  const device::Description& own = gpu.description;
  if (options.target == "cpu") {
    throw UserError(fmt::format(
        "target=cpu contradicts the session's device, the GPU {}: choose the CPU's OrtEpDevice",
        own.name));
  }
  if (gpu.present() && options.device_id >= 0 && options.device_id != own.ordinal) {
    throw UserError(
        fmt::format("device_id={} contradicts the session's device, GPU {} ({}): leave device_id "
                    "out, or choose "
                    "the OrtEpDevice whose cuda_device_id is {}",
                    options.device_id, own.ordinal, own.name, options.device_id));
  }
  Target target;
  target.host = codegen::detect_host();
  target.gpu = &gpu;
  if (!options.target_arch.empty() && options.target_arch.front() != own.arch) {
    target.description = device::named_description(options.target_arch.front());
    return target;
  }
  target.description = own;
  if (gpu.present()) target.device = device::Device::open(own.ordinal);
  return target;
}

}  // namespace

kernels::Settings Target::settings(const Options& options) const {
  kernels::Settings settings;
  settings.host = host;
  if (description) {
    settings.gpu = description->target();
    settings.gpu->cost_seed = codegen::cost_seed_of_environment();
  }
  // Host kernels alone round activations to 8 bits: on a GPU results are exact with that permission
  // as well, and a tuner expects them to be.
  const bool rounds = options.precision_mode == "int8" && !description;
  settings.precision = rounds                             ? kernels::Precision::kInt8
                       : options.precision_mode == "tf32" ? kernels::Precision::kTf32
                                                          : kernels::Precision::kExact;
  settings.records = records;
  settings.require_tuned = options.require_tuned;
  if (job) settings.collectives = job->collectives();
  settings.cudnn = options.enable_cudnn;
  if (device) settings.device_ordinal = description->ordinal;
  settings.collective_overlap = options.collective_overlap;
  return settings;
}

std::string Target::name() const {
  if (!description) return host.name;
  if (!device) return description->arch + ", which is not here";
  return fmt::format("{} ({})", description->name, description->arch);
}

Target choose_target(const Options& options, Gpu* gpu) {
  Target target = gpu == nullptr ? on_cpu(options) : on_gpu(options, *gpu);
  target.records = read_records(options, target);
  return target;
}

std::vector<Target> further_targets(const Options& options) {
  std::vector<Target> targets;
  for (size_t i = 1; i < options.target_arch.size(); ++i) {
    const std::string& arch = options.target_arch[i];
    if (std::ranges::count(options.target_arch, arch) > 1) {
      throw UserError(fmt::format("target_arch names {} twice: leave one out", arch));
    }
    Target& target = targets.emplace_back();
    target.host = codegen::detect_host();
    target.description = device::named_description(arch);
    target.records = read_records(options, target);
  }
  return targets;
}

}  // namespace tenon::provider
