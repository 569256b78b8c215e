#include "kernels/saved_program.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/stopwatch.h"
#include "base/thread_pool.h"
#include "codegen/gpu_code_bytes.h"
#include "codegen/pdl.h"
#include "codegen/tile/text.h"
#include "codegen/tile/verify.h"
#include "kernels/autotune/tuning_file.h"
#include "kernels/autotune/tuning_records.h"
#include "kernels/check_program.h"
#include "kernels/compile_launches.h"
#include "kernels/cudnn/candidates.h"
#include "kernels/cudnn/library.h"
#include "kernels/cudnn/versions.h"
#include "kernels/device/assembler.h"
#include "kernels/device/driver.h"
#include "kernels/planning/saved_form.h"
#include "kernels/program_bytes.h"
#include "kernels/saved_target.h"

namespace tenon::kernels {
namespace {

constexpr int kNewestCuda = 13;  // where no driver says what it takes

// A kernel for a GPU as it is stored.
struct SavedCode {
  codegen::GpuCode code;
  bool has_machine_code = false;
};

int newest_cuda() {
  const device::DriverAnswer& answer = device::driver();
  return answer.support ? answer.version / 1000 : kNewestCuda;
}

SavedCode assemble(const codegen::GpuCode& code, const codegen::GpuTarget& target,
                   DiskCache* cache) {
  SavedCode saved{code};
  const auto made =
      device::assemble(code, device::content_of(code), target.arch, newest_cuda(), cache).code;
  saved.has_machine_code = made != nullptr;
  if (made) saved.code.machine_code = made->bytes;
  return saved;
}

bool calls_library(const Program& program) {
  return std::ranges::any_of(program.launches, [](const CompiledLaunch& launch) {
    return launch.kind == LaunchKind::kLibraryCall;
  });
}

class ProgramSaver {
 public:
  ProgramSaver(const Program& program, std::string_view name, const Settings& settings,
               ContextWriter& file, const SaveOptions& options)
      : program_(program),
        name_(name),
        settings_(settings),
        file_(file),
        options_(options),
        target_(SavedTarget::of(settings)),
        key_(target_.key()) {
    if (!program.texts || settings.emulate) {
      throw InternalError("a program that is to be saved is made with Settings::keep_texts");
    }
    if (file.has(section("head"))) {
      throw UserError(fmt::format("partition '{}' is compiled for {} twice", name, key_));
    }
  }

  void save() {
    const bool inside = options_.weights == SavedWeights::kInside;
    const std::string program = to_bytes(program_, inside);  // refuses before it writes
    file_.add(section("program"), program);
    save_texts();
    save_records();
    if (settings_.gpu) save_code();
    if (options_.weights != SavedWeights::kNone) count_weights();
    if (inside) save_weights();
    if (options_.weights == SavedWeights::kOutside) save_places();
    target_.cudnn = calls_library(program_) ? cudnn::library().functions.version : 0;
    target_.launches = program_.launches.size();
    target_.kernels = program_.kernels.size();
    target_.weights = options_.weights;
    for (const CompiledLaunch& launch : program_.launches) {
      target_.shared_bytes = std::max(target_.shared_bytes, launch.shared_bytes);
    }
    file_.add(section("head"), target_.to_bytes());
    if (!file_.has(graph_section(name_))) file_.add(graph_section(name_), program_.texts->graph);
  }

 private:
  std::string section(std::string_view what) const { return section_name(what, key_, name_); }

  void save_texts() {
    SavedWriter writer;
    writer.list(program_.texts->kernels, [&](const ProgramTexts::Kernel& kernel) {
      writer.text(kernel.text);
      writer.number(kernel.threads);
    });
    file_.add(section("texts"), writer.take());
  }

  // Kernels are stored as they were chosen; who packs weights anew chooses once more.
  void save_records() {
    TuningFile used;
    for (const std::string& records : program_.texts->used_records) {
      used.merge(TuningFile::parse(records).records);
    }
    if (!used.records.empty()) file_.add(section("tuning"), used.print());
  }

  void save_code() {
    std::vector<SavedCode> all(program_.gpu_code.size());
    parallel_for_each(static_cast<int64_t>(all.size()), [&](int64_t i) {
      all[i] = assemble(*program_.gpu_code[i], *settings_.gpu, settings_.kernel_cache.get());
    });
    SavedWriter writer;
    writer.list(all, [&](const SavedCode& saved) {
      writer.text(codegen::to_bytes(saved.code));
      writer.text(saved.code.machine_code);
      target_.machine_code += saved.has_machine_code ? 1 : 0;
      target_.shared_bytes = std::max(target_.shared_bytes, saved.code.shared_bytes);
    });
    file_.add(section("code"), writer.take());
  }

  void count_weights() {
    for (const Slot& slot : program_.slots) {
      if (slot.kind != Slot::Kind::kConstant) continue;
      target_.weight_bytes += static_cast<uint64_t>(slot.bytes.value());
    }
  }

  void save_weights() {
    for (size_t i = 0; i < program_.slots.size(); ++i) {
      const Slot& slot = program_.slots[i];
      if (slot.kind == Slot::Kind::kConstant && !is_small_constant(slot)) save_weight(i, slot);
    }
  }

  // Targets fuse in different ways: each needs a graph of its own.
  void save_places() {
    file_.add(section("fused"), program_.texts->graph);
    file_.add(section("outside"),
              leave_outside(program_, settings_, options_.files, file_).to_bytes());
  }

  void save_weight(size_t number, const Slot& slot) {
    const auto bytes = static_cast<uint64_t>(slot.bytes.value());
    const std::string section = weight_section(key_, number, name_);
    if (slot.data == nullptr && slot.pack != nullptr) {
      return file_.add_data(section, bytes, slot.pack, slot.unit);
    }
    const auto data = constant_bytes(slot);
    file_.add_data(section, bytes, [&](int64_t first, std::span<std::byte> out) {
      std::memcpy(out.data(), static_cast<const std::byte*>(data.get()) + first, out.size());
    });
  }

  const Program& program_;
  const std::string name_;
  const Settings& settings_;
  ContextWriter& file_;
  const SaveOptions options_;
  SavedTarget target_;
  const std::string key_;
};

class ProgramOpener {
 public:
  ProgramOpener(std::shared_ptr<const ContextFile> file, std::string_view name,
                const SavedTarget& target, const Settings& settings, const FindWeightFile& find)
      : file_(std::move(file)),
        name_(name),
        target_(target),
        key_(target.key()),
        settings_(settings),
        find_(find) {}

  OpenedProgram open(const SavedFit& fit) {
    const Stopwatch watch;
    ProgramFromBytes read = program_from_bytes(file_->section(section("program")));
    const bool outside = target_.weights == SavedWeights::kOutside;
    if (!read.has_weights && !outside) {
      throw UserError("it was saved without its weights, to be looked at only");
    }
    OpenedProgram opened{std::move(read.program), fit.reason};
    outside ? pack_weights(opened) : find_weights(opened.program);
    // Before any code is made: the compilers trust what launches say.
    check_program(opened.program, target_.gpu.has_value());
    make_calls(opened.program);
    if (!target_.gpu) {
      compile_on_host(opened.program);
    } else if (fit.kind == SavedFit::Kind::kAsStored) {
      opened.recompiled = take_code(opened.program);
    } else {
      compile_for_this_gpu(opened.program);
    }
    opened.program.phases.push_back({"opening", watch.milliseconds()});
    return opened;
  }

 private:
  std::string section(std::string_view what) const { return section_name(what, key_, name_); }

  void find_weights(Program& program) const {
    WeightCheck check{file_, target_.gpu.has_value() && file_->is_mapped()};
    std::set<const std::byte*> seen;
    for (size_t i = 0; i < program.slots.size(); ++i) {
      Slot& slot = program.slots[i];
      if (slot.kind != Slot::Kind::kConstant || slot.data != nullptr) continue;
      const DataSection data = file_->data(weight_section(key_, i, name_));
      if (!slot.bytes.is(static_cast<int64_t>(data.bytes.size()))) {
        throw UserError(fmt::format("weight '{}' has another size", slot.name));
      }
      take_bytes(data, slot);
      if (seen.insert(data.bytes.data()).second) check.add(i, *file_, data);
    }
    if (target_.gpu) {
      program.check_weights = std::move(check);
    } else {
      check.check_all();
    }
  }

  // The graph that the program was made of is lowered once more, for the same target.
  void pack_weights(OpenedProgram& opened) const {
    const auto graph = std::make_shared<OutsideGraph>(
        file_, OutsideWeights::from_bytes(file_->section(section("outside"))),
        file_->section(section("fused")), find_);
    WeightCheck check = graph->check(graph, target_.gpu.has_value());
    LoweredProgram lowered = lower(*graph, check);
    take_packed(std::move(lowered.slots), graph->weights().packed, opened.program.slots);
    if (target_.gpu) opened.program.check_weights = std::move(check);
    opened.packed_from = graph;
  }

  // What the program was chosen by, wherever it was measured; null: nothing.
  std::shared_ptr<const TuningRecords> saved_records() const {
    if (!file_->has(section("tuning"))) return nullptr;
    const TuningFile used = TuningFile::parse(file_->section(section("tuning")));
    if (!used.problems.empty()) throw UserError("its tuning records: " + used.problems.front());
    return std::make_shared<const TuningRecords>(used.records, TuningMachine{});
  }

  // The host packs while weights are checked; for a GPU they are packed and checked later. What
  // weights hold has a part in how they are packed: a file that was changed is told of first.
  LoweredProgram lower(OutsideGraph& graph, const WeightCheck& check) const {
    const bool packs = !target_.gpu;
    std::future<void> checked =
        std::async(packs ? std::launch::async : std::launch::deferred, [&] { check.check_all(); });
    LoweredProgram lowered;
    std::exception_ptr failed;
    try {
      Settings settings = settings_;
      settings.gpu = target_.gpu;
      settings.records = saved_records();
      settings.require_tuned = false;
      if (packs) settings.host = target_.host;
      lowered = graph.lower(std::move(settings));
      if (lowered.content != graph.weights().lowering) {
        throw UserError(
            "this version of Tenon packs the weights in another way than the one that wrote it");
      }
    } catch (...) {
      failed = std::current_exception();
    }
    if (packs || failed) checked.get();
    if (failed) std::rethrow_exception(failed);
    return lowered;
  }

  static void take_packed(std::vector<Slot> packed,
                          const std::vector<OutsideWeights::Packed>& contents,
                          std::vector<Slot>& slots) {
    if (packed.size() != slots.size()) throw UserError("its weights are those of another program");
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].kind != packed[i].kind) throw UserError("a weight is something else");
      if (slots[i].kind != Slot::Kind::kConstant) continue;
      if (!(slots[i].bytes == packed[i].bytes)) {
        throw UserError(fmt::format("weight '{}' has another size", slots[i].name));
      }
      slots[i] = std::move(packed[i]);
    }
    for (const auto& [slot, content] : contents) {
      if (slot < slots.size()) slots[slot].content = content;
    }
  }

  // The host reads them where they are.
  void take_bytes(const DataSection& data, Slot& slot) const {
    if (!target_.gpu) {
      slot.data = std::shared_ptr<const void>(file_, data.bytes.data());
      return;
    }
    slot.pack = [file = file_, from = data.bytes](int64_t first, std::span<std::byte> out) {
      std::memcpy(out.data(), from.data() + first, out.size());
    };
    if (file_->is_mapped()) slot.sources = {data.bytes};
    slot.content = sha256(std::as_bytes(data.digests));
  }

  // Which were read only say what they are.
  void make_calls(Program& program) const {
    for (CompiledLaunch& launch : program.launches) {
      if (launch.kind != LaunchKind::kLibraryCall) continue;
      if (target_.cudnn == 0) throw UserError("it calls cuDNN and does not say so");
      launch.call = saved_cudnn_call(launch.call->saved(), launch.indices, settings_);
    }
  }

  struct Texts {
    std::vector<codegen::Kernel> kernels;
    std::vector<int> threads;
  };

  Texts read_texts(const Program& program) const {
    SavedReader reader(file_->section(section("texts")));
    std::vector<std::string_view> texts;
    Texts read;
    read.threads = reader.list([&] {
      texts.push_back(reader.text());
      return reader.small();
    });
    reader.end();
    if (texts.size() != program.kernels.size()) throw UserError("kernels have no text");
    read.kernels.resize(texts.size());
    parallel_for_each(static_cast<int64_t>(texts.size()), [&](int64_t i) {
      read.kernels[i] = codegen::parse(texts[i]);
      if (const Support sound = codegen::verify(read.kernels[i]); !sound) {
        throw UserError(sound.reason);
      }
    });
    for_kernel_launches(program, [&](const CompiledLaunch& launch) {
      check_kernel(read.kernels[launch.kernel], launch, program.slots);
    });
    return read;
  }

  template <typename Visit>
  static void for_kernel_launches(const Program& program, const Visit& visit) {
    for (const CompiledLaunch& launch : program.launches) {
      if (launch.kind == LaunchKind::kKernel) visit(launch);
    }
  }

  // For the processor that it was planned for, of which this one has everything: same bits.
  void compile_on_host(Program& program) const {
    codegen::HostTarget host = target_.host;
    host.name = settings_.host.name;
    host.threads = settings_.host.threads;
    compile_saved_kernels(read_texts(program).kernels, host, program);
  }

  void compile_for_this_gpu(Program& program) const {
    Texts texts = read_texts(program);
    order_anew(texts.kernels, program);
    compile_saved_gpu_kernels(std::move(texts.kernels), std::move(texts.threads), *settings_.gpu,
                              settings_.kernel_cache.get(), program);
  }

  // Another GPU may or may not begin launches before others have ended.
  void order_anew(const std::vector<codegen::Kernel>& kernels, Program& program) const {
    const bool has_pdl = codegen::has_pdl(*settings_.gpu);
    LaunchDependencies order({}, program.dependencies.caches());
    for (const CompiledLaunch& launch : program.launches) {
      order.begin_node();
      if (launch.kind == LaunchKind::kKernel) {
        order.add(kernels[launch.kernel], launch.node, launch.slots, has_pdl);
      } else if (launch.kind == LaunchKind::kLibraryCall) {
        order.add_call(launch.call->name(), launch.node, launch.slots, launch.call->form().writes(),
                       /*reads_written=*/false);
      } else {
        order.add_call("copy", launch.node, launch.slots, {false, true}, /*reads_written=*/false);
      }
      for (const CheckedIndices& checked : launch.checks) order.add_watched(checked.slot);
    }
    if (const Support safe = order.verify(program.slots); !safe) throw UserError(safe.reason);
    program.dependencies = std::move(order);
  }

  // Returns what of it is made again, if anything.
  std::string take_code(Program& program) const {
    constexpr std::string_view kElf = "\177ELF";
    SavedReader reader(file_->section(section("code")));
    size_t without = 0;
    program.gpu_code = reader.list([&] {
      codegen::GpuCode code = codegen::gpu_code_from_bytes(reader.text());
      code.machine_code = reader.text();
      if (!code.machine_code.empty() && !code.machine_code.starts_with(kElf)) {
        throw UserError("machine code is something else");
      }
      without += code.machine_code.empty() ? 1 : 0;
      return std::make_shared<const codegen::GpuCode>(std::move(code));
    });
    reader.end();
    if (program.gpu_code.size() != program.kernels.size()) throw UserError("kernels have no code");
    for_kernel_launches(program, [&](const CompiledLaunch& launch) {
      check_kernel(*program.gpu_code[launch.kernel], launch);
    });
    if (without == 0) return {};
    return fmt::format(
        "machine code of {} kernels was made again from their PTX, for nvJitLink or NVRTC was not "
        "there when the context was written",
        without);
  }

  const std::shared_ptr<const ContextFile> file_;
  const std::string name_;
  const SavedTarget& target_;
  const std::string key_;
  const Settings& settings_;
  const FindWeightFile& find_;
};

std::vector<SavedProgram::File> files_of(const OutsideWeights& weights) {
  std::vector<SavedProgram::File> files;
  for (const std::string& name : weights.files) files.push_back({name});
  for (const OutsideWeights::Weight& weight : weights.weights) {
    files[weight.file].bytes += weight.bytes;
    files[weight.file].end = std::max(files[weight.file].end, weight.offset + weight.bytes);
  }
  return files;
}

std::vector<SavedTarget> targets_of(const ContextFile& file, std::string_view name) {
  std::vector<SavedTarget> targets;
  for (SavedPart& part : saved_parts(file)) {
    if (part.partition == name) targets.push_back(std::move(part.target));
  }
  if (targets.empty()) {
    throw UserError(fmt::format("{}: it holds no partition '{}'. Compile the model again",
                                file.origin(), name));
  }
  return targets;
}

}  // namespace

void save_program(const Program& program, std::string_view name, const Settings& settings,
                  ContextWriter& file, const SaveOptions& options) {
  ProgramSaver(program, name, settings, file, options).save();
}

OpenedProgram open_program(const std::shared_ptr<const ContextFile>& file, std::string_view name,
                           const Settings& settings, const FindWeightFile& find) {
  if (settings.emulate) throw InternalError("what was saved for a GPU is not interpreted");
  const std::vector<SavedTarget> targets = targets_of(*file, name);
  const TargetChoice choice = choose_target(targets, settings);
  if (choice.target == nullptr) {
    throw UserError(fmt::format("{}: {}", file->origin(), choice.fit.reason));
  }
  try {
    return ProgramOpener(file, name, *choice.target, settings, find).open(choice.fit);
  } catch (const WeightFileError&) {
    throw;  // the context is not at fault
  } catch (const UserError& error) {
    const std::string reason = error.what();
    if (reason.starts_with(file->origin())) throw;
    throw UserError(
        fmt::format("{}: partition '{}' for {} cannot be opened: {}. Compile the model "
                    "again",
                    file->origin(), name, choice.target->key(), reason));
  }
}

std::vector<SavedProgram> saved_programs(const ContextFile& file) {
  std::vector<SavedProgram> programs;
  for (const SavedPart& part : saved_parts(file)) {
    const SavedTarget& target = part.target;
    SavedProgram program{part.partition,
                         target.key(),
                         target.describe(),
                         target.launches,
                         target.kernels,
                         target.machine_code,
                         target.weight_bytes,
                         target.weights,
                         target.cudnn == 0 ? "" : cudnn::version_text(target.cudnn),
                         {},
                         {}};
    if (target.weights == SavedWeights::kOutside) {
      program.files = files_of(OutsideWeights::from_bytes(
          file.section(section_name("outside", program.target, program.name))));
    }
    if (file.has(graph_section(part.partition))) {
      program.graph = file.section(graph_section(part.partition));
    }
    programs.push_back(std::move(program));
  }
  return programs;
}

SavedFit fit_of(const ContextFile& file, std::string_view name, const Settings& settings) {
  return choose_target(targets_of(file, name), settings).fit;
}

}  // namespace tenon::kernels
