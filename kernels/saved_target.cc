#include "kernels/saved_target.h"

#include <algorithm>
#include <cstdlib>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/arch_spec.h"
#include "kernels/cudnn/candidates.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/kernel_cache.h"
#include "kernels/planning/saved_form.h"

namespace tenon::kernels {
namespace {

using Kind = SavedFit::Kind;

constexpr int64_t kForm = 6;  // of everything that saved_program.cc writes
constexpr std::string_view kHead = "head";

std::string_view name(codegen::HostArch arch) {
  return arch == codegen::HostArch::kX86_64 ? "x86_64" : "aarch64";
}

void write(const codegen::GpuTarget& gpu, SavedWriter& writer) {
  writer.text(gpu.arch);
  writer.number(gpu.shared_bytes);
  writer.number(gpu.sm_count);
  writer.number(gpu.threads);
  writer.flag(gpu.pipelines);
}

codegen::GpuTarget read_gpu(SavedReader& reader) {
  codegen::GpuTarget gpu;
  gpu.arch = reader.text();
  (void)codegen::arch_spec(gpu.arch);  // throws for one that nobody knows
  gpu.shared_bytes = reader.small();
  gpu.sm_count = reader.small(1);
  gpu.threads = reader.small(1);
  gpu.pipelines = reader.flag();
  return gpu;
}

void write(const codegen::HostTarget& host, SavedWriter& writer) {
  writer.kind(host.arch);
  writer.text(host.name);
  writer.list(host.features, [&](const std::string& feature) { writer.text(feature); });
  writer.number(host.vector_bits);
  writer.number(host.vector_registers);
  writer.number(host.l1_bytes);
  writer.number(host.l2_bytes);
  writer.flag(host.tiles);
}

codegen::HostTarget read_host(SavedReader& reader) {
  codegen::HostTarget host;
  host.arch = reader.kind(codegen::HostArch::kAArch64);
  host.name = reader.text();
  host.features = reader.list([&] { return std::string(reader.text()); });
  host.vector_bits = reader.small(64);
  host.vector_registers = reader.small(1);
  host.l1_bytes = reader.number(0);
  host.l2_bytes = reader.number(0);
  host.tiles = reader.flag();
  return host;
}

// Its kernels use vectors and features of the processor that they were planned for.
SavedFit fit_on_host(const codegen::HostTarget& saved, const codegen::HostTarget& here) {
  std::vector<std::string> absent;
  for (const std::string& feature : saved.features) {
    if (!here.has(feature)) absent.push_back(feature);
  }
  if (saved.vector_bits > here.vector_bits) {
    absent.push_back(fmt::format("vectors of {} bits", saved.vector_bits));
  }
  if (saved.tiles && !here.tiles) absent.emplace_back("tiles");
  if (absent.empty()) return {};
  return {Kind::kNot, fmt::format("it was compiled for a processor with {}, which this one lacks",
                                  fmt::join(absent, ", "))};
}

SavedFit fit_on_gpu(const SavedTarget& saved, const codegen::GpuTarget& here) {
  if (saved.shared_bytes > here.shared_bytes) {
    return {Kind::kNot,
            fmt::format("its kernels for {} need {} bytes of shared memory per CTA, and this GPU "
                        "has {}",
                        saved.gpu->arch, saved.shared_bytes, here.shared_bytes)};
  }
  if (saved.gpu->arch == here.arch) return {};
  return {Kind::kCompiledAgain,
          fmt::format("kernels were compiled again from their texts, for the context holds {} and "
                      "the GPU is {}",
                      saved.gpu->arch, here.arch)};
}

SavedFit fit(const SavedTarget& saved, const Settings& settings) {
  return saved.gpu ? fit_on_gpu(saved, *settings.gpu) : fit_on_host(saved.host, settings.host);
}

// Smaller is nearer: the same generation first, then the newest before it.
auto distance(const SavedTarget& saved, const Settings& settings) {
  if (!saved.gpu) return std::tuple(0, 0, 0);
  const codegen::ArchSpec& from = codegen::arch_spec(saved.gpu->arch);
  const codegen::ArchSpec& here = codegen::arch_spec(settings.gpu->arch);
  const int difference = here.compute_major - from.compute_major;
  return std::tuple(difference < 0 ? 1 : 0, std::abs(difference),
                    std::abs(here.compute_minor - from.compute_minor));
}

}  // namespace

SavedTarget SavedTarget::of(const Settings& settings) {
  SavedTarget target;
  target.gpu = settings.gpu;
  target.host = settings.host;
  target.build = device::compiler_build();
  return target;
}

std::string SavedTarget::key() const { return gpu ? gpu->arch : std::string(name(host.arch)); }

std::string SavedTarget::describe() const {
  if (gpu && cudnn != 0) {
    return fmt::format("{} with cuDNN {}", gpu->text(), cudnn::version_text(cudnn));
  }
  if (gpu) return gpu->text();
  return fmt::format("{} with {}", name(host.arch), fmt::join(host.features, ", "));
}

std::string SavedTarget::to_bytes() const {
  SavedWriter writer;
  writer.number(kForm);
  writer.text(build);
  writer.flag(gpu.has_value());
  gpu ? write(*gpu, writer) : write(host, writer);
  for (const size_t count : {launches, kernels, machine_code}) writer.number(count);
  writer.number(shared_bytes);
  writer.number(static_cast<int64_t>(weight_bytes));
  writer.kind(weights);
  writer.number(cudnn);
  return writer.take();
}

SavedTarget SavedTarget::from_bytes(std::string_view bytes) {
  SavedReader reader(bytes);
  if (const int64_t form = reader.number(); form != kForm) {
    throw UserError(
        fmt::format("it has form {}, and this version of Tenon reads form {}", form, kForm));
  }
  SavedTarget target;
  target.build = reader.text();
  if (reader.flag()) {
    target.gpu = read_gpu(reader);
  } else {
    target.host = read_host(reader);
  }
  for (size_t* count : {&target.launches, &target.kernels, &target.machine_code}) {
    *count = reader.size();
  }
  target.shared_bytes = reader.number(0);
  target.weight_bytes = reader.size();
  target.weights = reader.kind(SavedWeights::kOutside);
  target.cudnn = reader.small();
  if (target.cudnn != 0 && !target.gpu) throw UserError("cuDNN is called where no GPU is");
  reader.end();
  return target;
}

std::string section_name(std::string_view what, std::string_view key, std::string_view partition) {
  return fmt::format("{}/{}/{}", what, key, partition);
}

std::string weight_section(std::string_view key, size_t slot, std::string_view partition) {
  return fmt::format("weights/{}/{}/{}", key, slot, partition);
}

std::string graph_section(std::string_view partition) { return fmt::format("graph/{}", partition); }

std::vector<SavedPart> saved_parts(const ContextFile& file) {
  std::vector<SavedPart> parts;
  for (const std::string_view name : file.names()) {
    const size_t key = kHead.size() + 1;
    if (name.substr(0, key) != fmt::format("{}/", kHead)) continue;
    const size_t slash = name.find('/', key);
    if (slash == name.npos || file.has_data(name)) continue;
    const std::string_view bytes = file.section(name);
    try {
      parts.push_back({std::string(name.substr(slash + 1)), SavedTarget::from_bytes(bytes)});
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: section '{}' cannot be read: {}. Compile the model again",
                                  file.origin(), name, error.what()));
    }
    if (parts.back().target.key() != name.substr(key, slash - key)) {
      throw UserError(fmt::format("{}: section '{}' is another target's. Compile the model again",
                                  file.origin(), name));
    }
  }
  return parts;
}

Support opens_cudnn_calls(const Settings& settings) {
  constexpr std::string_view kOtherwise = "or compile the model again with enable_cudnn=0";
  if (!settings.cudnn) {
    return Support::no(fmt::format(
        "it calls cuDNN, and enable_cudnn is 0: open it without that option, {}", kOtherwise));
  }
  const auto no = [&](std::string_view why, std::string_view what) {
    return Support::no(fmt::format("it calls cuDNN, and {}{}, {}", why, what, kOtherwise));
  };
  const cudnn::LibraryAnswer& library = cudnn::library();
  if (!library.support) return no(library.support.reason, "");  // which says what to install
  constexpr std::string_view kInstall = ". Install another cuDNN (nvidia-cudnn-cu13)";
  if (Support usable = may_use_cudnn(settings); !usable) return no(usable.reason, kInstall);
  const int major = codegen::arch_spec(settings.gpu->arch).compute_major;
  const Support planned = cudnn::plans_without_device(library.functions.version, major);
  return planned ? planned : no(planned.reason, kInstall);
}

TargetChoice choose_target(const std::vector<SavedTarget>& targets, const Settings& settings) {
  TargetChoice best;
  for (const SavedTarget& target : targets) {
    const bool is_same_kind = target.gpu.has_value() == settings.gpu.has_value();
    if (!is_same_kind || (!target.gpu && target.host.arch != settings.host.arch)) continue;
    const TargetChoice next{&target, fit(target, settings)};
    const auto rank = [&](const TargetChoice& choice) {
      return std::tuple(choice.fit.kind, distance(*choice.target, settings));
    };
    if (best.target == nullptr || rank(next) < rank(best)) best = next;
  }
  if (best.target != nullptr && best.fit.kind != Kind::kNot) {
    const Support calls = best.target->cudnn == 0 ? Support::yes() : opens_cudnn_calls(settings);
    if (!calls) return {nullptr, {Kind::kNot, calls.reason}};
    return best;
  }
  std::vector<std::string> stored;
  for (const SavedTarget& target : targets) stored.push_back(target.key());
  const std::string here =
      settings.gpu ? settings.gpu->arch : std::string(name(settings.host.arch)) + " processors";
  best.fit = {
      Kind::kNot,
      fmt::format(
          "it holds code for {} and none that runs here ({}){}{}. {}", fmt::join(stored, ", "),
          here, best.fit.reason.empty() ? "" : ": ", best.fit.reason,
          settings.gpu ? fmt::format("Compile the model with target_arch={}", settings.gpu->arch)
                       : "Compile the model on a machine like this one")};
  best.target = nullptr;
  return best;
}

}  // namespace tenon::kernels
