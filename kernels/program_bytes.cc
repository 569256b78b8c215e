#include "kernels/program_bytes.h"

#include <cstring>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "kernels/cudnn/graph_call.h"
#include "kernels/planning/saved_form.h"
#include "kernels/report_bytes.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kSmallBytes = 4096;

enum class ConstantPlace : uint8_t { kNowhere, kHere, kElsewhere };

class ProgramWriter {
 public:
  ProgramWriter(const Program& program, bool weights) : program_(program), weights_(weights) {}

  std::string run() {
    to_.flag(weights_);
    to_.list(program_.inputs, [&](const ProgramInput& input) { write(input); });
    to_.list(program_.outputs, [&](const ProgramOutput& output) {
      to_.shape(output.shape);
      to_.kind(output.dtype);
    });
    to_.list(program_.slots, [&](const Slot& slot) { write(slot); });
    to_.numbers(program_.output_slots);
    to_.list(program_.launches, [&](const CompiledLaunch& launch) { write(launch); });
    write_dependencies();
    to_.list(program_.size_checks, [&](const ir::Requirement& required) {
      to_.dim(required.left);
      to_.kind(required.relation);
      to_.dim(required.right);
      to_.text(required.node);
      to_.numbers(required.sources);
    });
    to_.list(program_.shape_writes, [&](const ShapeWrite& write) {
      to_.number(write.slot);
      to_.kind(write.dtype);
      to_.shape(write.elements);
    });
    to_.list(program_.kernels, [&](const KernelReport& kernel) { to_.text(kernel.name); });
    write_reports(program_.fusions, to_);
    to_.number(program_.weight_bytes);
    to_.number(program_.packed_bytes);
    return to_.take();
  }

 private:
  void write(const ProgramInput& input) {
    to_.text(input.name);
    to_.kind(input.dtype);
    for (const auto* dims : {&input.shape, &input.elements}) {
      to_.flag(dims->has_value());
      if (*dims) to_.shape(**dims);
    }
  }

  void write(const Slot& slot) {
    to_.kind(slot.kind);
    to_.number(slot.index);
    to_.dim(slot.bytes);
    to_.number(slot.first);
    to_.number(slot.last);
    to_.text(slot.name);
    to_.flag(slot.own);
    if (slot.kind != Slot::Kind::kConstant) return;
    const ConstantPlace place = !weights_                 ? ConstantPlace::kNowhere
                                : is_small_constant(slot) ? ConstantPlace::kHere
                                                          : ConstantPlace::kElsewhere;
    to_.kind(place);
    if (place != ConstantPlace::kHere) return;
    const auto bytes = constant_bytes(slot);
    to_.text({static_cast<const char*>(bytes.get()), static_cast<size_t>(slot.bytes.value())});
  }

  void write(const CompiledLaunch& launch) {
    const std::string call = launch.call ? launch.call->saved() : "";
    const bool is_call = launch.kind != LaunchKind::kKernel && launch.kind != LaunchKind::kCopy;
    if (is_call && call.empty()) {
      throw UserError(
          fmt::format("node '{}' runs {}, which a context cannot hold: leave the library out to "
                      "save the model",
                      launch.node, launch.call ? launch.call->name() : name(launch.kind)));
    }
    to_.kind(launch.kind);
    if (is_call) to_.text(call);
    to_.text(launch.node);
    to_.dim(launch.copy_bytes);
    to_.number(launch.kernel);
    to_.number(launch.threads);
    to_.number(launch.shared_bytes);
    to_.list(launch.is_buffer, [&](bool is_buffer) { to_.flag(is_buffer); });
    to_.numbers(launch.slots);
    to_.list(launch.fetched, [&](const FetchedBuffer& fetched) {
      to_.number(fetched.parameter);
      to_.dim(fetched.bytes);
    });
    to_.shape(launch.indices);
    to_.dim(launch.tasks);
    to_.dim(launch.task_cost);
    to_.list(launch.checks, [&](const CheckedIndices& checked) { write(checked); });
    to_.list(launch.in_place, [&](const auto& pair) {
      to_.number(pair.first);
      to_.number(pair.second);
    });
    to_.flag(launch.elidable_copy.has_value());
    if (!launch.elidable_copy) return;
    to_.number(launch.elidable_copy->from);
    to_.number(launch.elidable_copy->to);
    to_.dim(launch.elidable_copy->from_bytes);
    to_.dim(launch.elidable_copy->to_bytes);
  }

  void write(const CheckedIndices& checked) {
    to_.number(checked.slot);
    to_.kind(checked.dtype);
    to_.dim(checked.count);
    to_.dim(checked.check.bound);
    to_.number(checked.check.first);
    to_.number(checked.check.step);
    to_.flag(checked.check.from_end);
    to_.number(checked.check.least);
    to_.text(checked.check.node);
  }

  void write_dependencies() {
    to_.list(program_.dependencies.launches(), [&](const LaunchDependencies::Launch& launch) {
      to_.text(launch.kernel);
      to_.text(launch.node);
      to_.kind(launch.wait);
      to_.flag(launch.always_waits);
      to_.list(launch.uses, [&](const LaunchDependencies::Use& use) {
        to_.number(use.slot);
        for (const bool flag : {use.reads, use.writes, use.before_wait, use.old_rows}) {
          to_.flag(flag);
        }
      });
    });
    to_.list(program_.dependencies.caches(), [&](const auto& cache) {
      to_.number(cache.first);
      to_.number(cache.second);
    });
  }

  const Program& program_;
  const bool weights_;
  SavedWriter to_;
};

class ProgramReader {
 public:
  explicit ProgramReader(std::string_view bytes) : from_(bytes) {}

  ProgramFromBytes run() {
    const bool has_weights = from_.flag();
    std::vector<ProgramInput> inputs = from_.list([&] { return read_input(); });
    Program program{SymbolBinding(inputs)};
    program.inputs = std::move(inputs);
    program.outputs = from_.list([&] {
      Shape shape = from_.shape();
      return ProgramOutput{std::move(shape), from_.dtype()};
    });
    program.slots = from_.list([&] { return read_slot(); });
    program.output_slots = from_.sizes();
    program.launches = from_.list([&] { return read_launch(); });
    program.dependencies = read_dependencies();
    program.size_checks = from_.list([&] { return read_size_check(); });
    program.shape_writes = from_.list([&] {
      ShapeWrite write;
      write.slot = from_.size();
      write.dtype = from_.dtype();
      write.elements = from_.shape();
      return write;
    });
    program.kernels = from_.list([&] { return KernelReport{std::string(from_.text())}; });
    const auto words = std::make_shared<std::set<std::string>>();
    program.fusions = read_reports(from_, *words);
    program.words = words;
    program.weight_bytes = from_.size();
    program.packed_bytes = from_.size();
    from_.end();
    return {std::move(program), has_weights};
  }

 private:
  ProgramInput read_input() {
    ProgramInput input;
    input.name = from_.text();
    input.dtype = from_.dtype();
    for (auto* dims : {&input.shape, &input.elements}) {
      if (from_.flag()) *dims = from_.shape();
    }
    return input;
  }

  Slot read_slot() {
    Slot slot;
    slot.kind = from_.kind(Slot::Kind::kCounters);
    slot.index = from_.size();
    slot.bytes = from_.dim();
    slot.first = from_.small();
    slot.last = from_.small();
    slot.name = from_.text();
    slot.own = from_.flag();
    if (slot.kind != Slot::Kind::kConstant) return slot;
    if (from_.kind(ConstantPlace::kElsewhere) != ConstantPlace::kHere) return slot;
    const std::string_view bytes = from_.text();
    if (!slot.bytes.is(static_cast<int64_t>(bytes.size()))) {
      throw UserError(fmt::format("constant '{}' has another size", slot.name));
    }
    const auto copy = aligned_bytes(bytes.size());
    if (!bytes.empty()) std::memcpy(copy.get(), bytes.data(), bytes.size());
    slot.data = std::shared_ptr<const void>(copy, copy.get());
    return slot;
  }

  CompiledLaunch read_launch() {
    CompiledLaunch launch;
    launch.kind = from_.kind(LaunchKind::kCopy);
    if (launch.kind == LaunchKind::kLibraryCall) {
      launch.call = cudnn::GraphCall::from_saved(from_.text(), /*functions=*/nullptr, -1);
    }
    launch.node = from_.text();
    launch.copy_bytes = from_.dim();
    launch.kernel = from_.size();
    launch.threads = from_.small();
    launch.shared_bytes = from_.small();
    launch.is_buffer = from_.list([&] { return from_.flag(); });
    launch.slots = from_.sizes();
    launch.fetched = from_.list([&] {
      const size_t parameter = from_.size();
      return FetchedBuffer{parameter, from_.dim()};
    });
    launch.indices = from_.shape();
    launch.tasks = from_.dim();
    launch.task_cost = from_.dim();
    launch.checks = from_.list([&] { return read_check(); });
    launch.in_place = from_.list([&] {
      const size_t from = from_.size();
      return std::pair(from, from_.size());
    });
    if (from_.flag()) {
      SharedBuffers& shared = launch.elidable_copy.emplace();
      shared.from = from_.size();
      shared.to = from_.size();
      shared.from_bytes = from_.dim();
      shared.to_bytes = from_.dim();
    }
    return launch;
  }

  CheckedIndices read_check() {
    CheckedIndices checked;
    checked.slot = from_.size();
    checked.dtype = from_.dtype();
    checked.count = from_.dim();
    checked.check.bound = from_.dim();
    checked.check.first = from_.number();
    checked.check.step = from_.number();
    checked.check.from_end = from_.flag();
    checked.check.least = from_.number();
    checked.check.node = from_.text();
    return checked;
  }

  LaunchDependencies read_dependencies() {
    auto launches = from_.list([&] {
      LaunchDependencies::Launch launch;
      launch.kernel = from_.text();
      launch.node = from_.text();
      launch.wait = from_.kind(codegen::Pdl::Wait::kLate);
      launch.always_waits = from_.flag();
      launch.uses = from_.list([&] {
        LaunchDependencies::Use use;
        use.slot = from_.size();
        for (bool* flag : {&use.reads, &use.writes, &use.before_wait, &use.old_rows}) {
          *flag = from_.flag();
        }
        return use;
      });
      return launch;
    });
    auto caches = from_.list([&] {
      const size_t past = from_.size();
      return std::pair(past, from_.size());
    });
    return {std::move(launches), std::move(caches)};
  }

  ir::Requirement read_size_check() {
    ir::Requirement required;
    required.left = from_.dim();
    required.relation = from_.kind(ir::Relation::kDivides);
    required.right = from_.dim();
    required.node = from_.text();
    required.sources =
        from_.list([&] { return static_cast<int>(from_.number(INT32_MIN, INT32_MAX)); });
    return required;
  }

  SavedReader from_;
};

}  // namespace

bool is_small_constant(const Slot& slot) { return slot.bytes.value() < kSmallBytes; }

std::shared_ptr<const void> constant_bytes(const Slot& slot) {
  if (slot.data != nullptr) return slot.data;
  const auto bytes = static_cast<size_t>(slot.bytes.value());
  if (bytes > 0 && slot.pack == nullptr) {
    throw InternalError(fmt::format("constant '{}' was let go before it was saved", slot.name));
  }
  const auto packed = bytes > 0 ? pack_whole(bytes, slot.pack, slot.unit) : aligned_bytes(1);
  return {packed, packed.get()};
}

std::string to_bytes(const Program& program, bool weights) {
  return ProgramWriter(program, weights).run();
}

ProgramFromBytes program_from_bytes(std::string_view bytes) { return ProgramReader(bytes).run(); }

}  // namespace tenon::kernels
