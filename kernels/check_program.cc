#include "kernels/check_program.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "base/error.h"
#include "codegen/pdl.h"
#include "codegen/tile/verify.h"

namespace tenon::kernels {
namespace {

using Kind = Slot::Kind;

constexpr int64_t kMostThreads = 1024;

void require(bool sound, std::string_view what) {
  if (!sound) throw UserError(std::string(what));
}

class ProgramCheck {
 public:
  ProgramCheck(const Program& program, bool on_gpu, bool weights)
      : program_(program), on_gpu_(on_gpu), weights_(weights) {}

  void run() const {
    for (const ProgramInput& input : program_.inputs) check(input);
    for (const ProgramOutput& output : program_.outputs) require_known(output.shape);
    for (const Slot& slot : program_.slots) check(slot);
    check_output_slots();
    check_order();
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      try {
        check(launch);
        check_lifetimes(launch, static_cast<int>(i));
        if (launch.kind == LaunchKind::kLibraryCall) check_call(launch, i);
      } catch (const UserError& error) {
        throw UserError(fmt::format("node '{}': {}", launch.node, error.what()));
      }
    }
    for (const ir::Requirement& required : program_.size_checks) {
      require_known(required.left);
      require_known(required.right);
    }
    for (const ShapeWrite& write : program_.shape_writes) check(write);
    check_dependencies();
  }

 private:
  void require_known(const Dim& dim) const {
    const Support known = program_.binding.covers(dim);
    require(known.ok, known.reason);
  }
  void require_known(const Shape& shape) const {
    const Support known = program_.binding.covers(shape);
    require(known.ok, known.reason);
  }
  void require_slot(size_t slot) const {
    require(slot < program_.slots.size(), "a slot is out of range");
  }

  // Elements are read by the host, as many as the program says.
  void check(const ProgramInput& input) const {
    if (input.shape) require_known(*input.shape);
    if (!input.elements) return;
    require_known(*input.elements);
    require(is_integer(input.dtype) || input.dtype == DType::kBool,
            "elements of another type are read");
    require(
        input.shape && element_count(*input.shape).is(static_cast<int64_t>(input.elements->size())),
        "more elements are read than there are");
  }

  void check(const Slot& slot) const {
    require_known(slot.bytes);
    require(!slot.bytes.is_constant() || slot.bytes.value() >= 0, "a slot has less than no bytes");
    require(slot.first >= 0 && slot.first <= slot.last, "a slot ends before it begins");
    if (slot.kind == Kind::kInput) {
      require(slot.index < program_.inputs.size(), "an input is out of range");
      require(slot.bytes == bytes_of(program_.inputs[slot.index]), "an input has another size");
    } else if (slot.kind == Kind::kOutput) {
      require(slot.index < program_.outputs.size(), "an output is out of range");
    } else if (slot.kind == Kind::kConstant) {
      require(slot.bytes.is_constant(), "a constant's size is not known");
      require(!weights_ || slot.data != nullptr || slot.pack != nullptr, "a constant is absent");
    }
  }

  // Which a Run may copy.
  static Dim bytes_of(const ProgramInput& input) {
    if (!input.shape) return 0;
    return ceil_div(element_count(*input.shape) * Dim(bit_width(input.dtype)), Dim(8));
  }

  void check_output_slots() const {
    require(program_.output_slots.size() == program_.outputs.size(), "an output has no slot");
    for (size_t i = 0; i < program_.output_slots.size(); ++i) {
      require_slot(program_.output_slots[i]);
      const Slot& slot = program_.slots[program_.output_slots[i]];
      require(slot.kind == Kind::kOutput && slot.index == i, "an output has another's slot");
    }
  }

  void check(const CompiledLaunch& launch) const {
    require(launch.kind != LaunchKind::kCollective, "it is no launch that can be saved");
    const auto buffers = std::ranges::count(launch.is_buffer, true);
    require(static_cast<size_t>(buffers) == launch.slots.size() &&
                launch.is_buffer.size() - static_cast<size_t>(buffers) == launch.indices.size(),
            "its arguments do not match");
    for (const size_t slot : launch.slots) require_slot(slot);
    require_known(launch.indices);
    for (const Dim* dim : {&launch.tasks, &launch.task_cost, &launch.copy_bytes}) {
      require_known(*dim);
    }
    for (const FetchedBuffer& fetched : launch.fetched) {
      require(fetched.parameter < launch.is_buffer.size() && launch.is_buffer[fetched.parameter],
              "it fetches what is no buffer");
      require_known(fetched.bytes);
    }
    for (const CheckedIndices& checked : launch.checks) check(checked);
    for (const auto& [from, to] : launch.in_place) {
      require_slot(from);
      require_slot(to);
    }
    if (const auto& shared = launch.elidable_copy) {
      require_slot(shared->from);
      require_slot(shared->to);
      require_known(shared->from_bytes);
      require_known(shared->to_bytes);
    }
    if (launch.kind == LaunchKind::kCopy) {
      check_copy(launch);
    } else if (launch.kind == LaunchKind::kKernel) {
      check_kernel_of(launch);
    }
  }

  // The arena gives the bytes of others to what is not needed any more.
  void check_lifetimes(const CompiledLaunch& launch, int number) const {
    for (const size_t used : launch.slots) {
      const Slot& slot = program_.slots[used];
      require(slot.kind != Kind::kArena || (slot.first <= number && number <= slot.last),
              "it touches a buffer before or after its time");
    }
  }

  void check_call(const CompiledLaunch& launch, size_t number) const {
    const CallForm form = launch.call != nullptr ? launch.call->form() : CallForm{};
    require(on_gpu_ && form.buffers > 0, "it calls what cannot be called");
    require(launch.slots.size() == form.buffers && launch.indices.size() == form.numbers,
            "its call takes other arguments");
    require(std::is_sorted(launch.is_buffer.begin(), launch.is_buffer.end(), std::greater<>()),
            "a call's numbers are not behind its buffers");
    const Slot& workspace = program_.slots[launch.slots.back()];
    require(workspace.kind == Kind::kArena && workspace.bytes == launch.indices.back(),
            "its workspace has another size");
    check_uses(launch, form, program_.dependencies.launches()[number]);
  }

  void check_uses(const CompiledLaunch& launch, const CallForm& form,
                  const LaunchDependencies::Launch& told) const {
    require(!told.launches_dependents(), "a call launches no dependents");
    const std::vector<bool> writes = form.writes();
    for (size_t i = 0; i < writes.size(); ++i) {
      const size_t slot = launch.slots[i];
      require(!writes[i] || program_.slots[slot].kind != Kind::kConstant,
              "it writes to a constant");
      const auto is_it = [&](const LaunchDependencies::Use& use) {
        return use.slot == slot && (writes[i] ? use.writes : use.reads);
      };
      require(std::ranges::any_of(told.uses, is_it), "others do not wait for its call");
    }
  }

  void check_copy(const CompiledLaunch& copy) const {
    require(copy.slots.size() == 2 && copy.indices.empty(), "a copy has other buffers");
    for (const size_t slot : copy.slots) {
      const Slot& described = program_.slots[slot];
      if (described.is_callers()) continue;
      require(!described.bytes.is_constant() || !copy.copy_bytes.is_constant() ||
                  copy.copy_bytes.value() <= described.bytes.value(),
              "it copies more than there is");
    }
    require(program_.slots[copy.slots[1]].kind != Kind::kConstant, "it copies to a constant");
  }

  void check_kernel_of(const CompiledLaunch& launch) const {
    require(launch.kernel < program_.kernels.size(), "its kernel is out of range");
    if (!on_gpu_) return;
    require(launch.threads >= 1 && launch.threads <= kMostThreads, "it has too many threads");
    require(launch.shared_bytes >= 0, "it has less than no shared memory");
  }

  // Read by the host, from the first element on.
  void check(const CheckedIndices& checked) const {
    require_slot(checked.slot);
    require(checked.dtype == DType::kI32 || checked.dtype == DType::kI64,
            "indices of another type are checked");
    require(checked.check.first >= 0 && checked.check.step >= 1, "indices are checked backwards");
    require_known(checked.count);
    require_known(checked.check.bound);
    const Slot& slot = program_.slots[checked.slot];
    if (slot.kind != Kind::kConstant) return;
    const int64_t width = bit_width(checked.dtype) / 8;
    require(checked.count.is_constant() && checked.count.value() <= slot.bytes.value() / width,
            "more indices are checked than there are");
  }

  // Written by the host.
  void check(const ShapeWrite& write) const {
    require_slot(write.slot);
    require_known(write.elements);
    const Slot& slot = program_.slots[write.slot];
    require(slot.kind == Kind::kArena || slot.kind == Kind::kOutput,
            "a value is written where none is");
    const auto count = static_cast<int64_t>(write.elements.size());
    if (slot.kind == Kind::kOutput) {
      require(element_count(program_.outputs[slot.index].shape).is(count),
              "a value that is written is no output");
    } else {
      require(slot.bytes.is(static_cast<int64_t>(storage_bytes(write.dtype, count))),
              "a value that is written has another size");
    }
  }

  void check_order() const {
    require(program_.dependencies.launches().size() == program_.launches.size(),
            "launches have no place in their order");
  }

  void check_dependencies() const {
    const auto& launches = program_.dependencies.launches();
    for (const LaunchDependencies::Launch& launch : launches) {
      for (const LaunchDependencies::Use& use : launch.uses) require_slot(use.slot);
    }
    for (const auto& [past, present] : program_.dependencies.caches()) {
      require_slot(past);
      require_slot(present);
    }
    const Support safe = program_.dependencies.verify(program_.slots);
    require(safe.ok, safe.reason);
  }

  const Program& program_;
  const bool on_gpu_, weights_;
};

}  // namespace

void check_program(const Program& program, bool on_gpu, bool weights) {
  ProgramCheck(program, on_gpu, weights).run();
}

void check_kernel(const codegen::Kernel& kernel, const CompiledLaunch& launch,
                  std::span<const Slot> slots) {
  const auto is_buffer = [](const codegen::Parameter& parameter) {
    return parameter.type.kind == codegen::Type::Kind::kBuffer;
  };
  require(std::ranges::equal(kernel.parameters, launch.is_buffer, {}, is_buffer),
          fmt::format("node '{}': kernel @{} takes other arguments", launch.node, kernel.name));
  const auto touches = codegen::pdl_of(kernel).parameters;
  auto slot = launch.slots.begin();
  for (size_t i = 0; i < launch.is_buffer.size(); ++i) {
    if (!launch.is_buffer[i]) continue;
    const Kind kind = slots[*slot++].kind;
    require(!touches[i].written || (kind != Kind::kConstant && kind != Kind::kInput),
            fmt::format("node '{}': kernel @{} writes what may only be read", launch.node,
                        kernel.name));
  }
}

void check_kernel(const codegen::GpuCode& code, const CompiledLaunch& launch) {
  const auto is = [&](int parameter, bool buffer) {
    const auto number = static_cast<size_t>(parameter);
    return number < launch.is_buffer.size() && launch.is_buffer[number] == buffer;
  };
  const auto is_size = [&](const codegen::TmaDescriptor::Size& size) {
    return size.parameter == -1 || is(size.parameter, false);
  };
  const bool sound =
      std::ranges::all_of(code.tma_descriptors, [&](const codegen::TmaDescriptor& descriptor) {
        return is(descriptor.buffer, true) && is_size(descriptor.rows) &&
               is_size(descriptor.columns) && is_size(descriptor.stride);
      });
  require(sound,
          fmt::format("node '{}': kernel {} takes other arguments", launch.node, code.entry));
}

}  // namespace tenon::kernels
