#include "kernels/running/buffer_bounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/checked.h"
#include "base/error.h"

namespace tenon::kernels {
namespace {

class BoundsCheck {
 public:
  BoundsCheck(const Program& program, const ShapeInstance& instance)
      : program_(program), instance_(instance) {}

  void run() const {
    for (size_t slot = 0; slot < program_.slots.size(); ++slot) require("memory", slot, 0);
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      check(program_.launches[i], instance_.launches[i]);
    }
    for (size_t i = 0; i < program_.shape_writes.size(); ++i) {
      const ShapeWrite& write = program_.shape_writes[i];
      const auto count = static_cast<int64_t>(instance_.shape_writes[i].size());
      require("sizes", write.slot, storage(write.dtype, count));
    }
  }

 private:
  void check(const CompiledLaunch& launch, const ShapeInstance::LaunchSize& size) const {
    if (launch.kind == LaunchKind::kCopy && size.tasks > 0) {
      for (const size_t slot : launch.slots) require(launch.node, slot, size.copy_bytes);
    }
    for (size_t i = 0; i < launch.fetched.size(); ++i) {
      require(launch.node, slot_of(launch, launch.fetched[i].parameter), size.fetched_bytes[i]);
    }
    if (const auto& shared = launch.elidable_copy) {
      require(launch.node, shared->from, size.from_bytes);
      require(launch.node, shared->to, size.to_bytes);
    }
    for (const ShapeInstance::Check& check : size.checks) {
      require(launch.node, check.slot, storage(check.dtype, check.count));
    }
  }

  // Of a buffer among the arguments.
  static size_t slot_of(const CompiledLaunch& launch, size_t parameter) {
    const auto first = launch.is_buffer.begin();
    return launch.slots[static_cast<size_t>(
        std::count(first, first + static_cast<std::ptrdiff_t>(parameter), true))];
  }

  static int64_t storage(DType dtype, int64_t elements) {
    return static_cast<int64_t>(storage_bytes(dtype, elements));
  }
  static int64_t storage(DType dtype, const std::vector<int64_t>& dims) {
    int64_t elements = 1;
    for (const int64_t dim : dims) elements = checked_mul(elements, dim);
    return storage(dtype, elements);
  }

  // Nothing: it cannot be told.
  std::optional<int64_t> bytes_of(size_t number) const {
    const Slot& slot = program_.slots[number];
    switch (slot.kind) {
      case Slot::Kind::kInput: {
        const ProgramInput& input = program_.inputs[slot.index];
        if (!input.shape || input.dtype == DType::kUndefined) return std::nullopt;
        return storage(input.dtype, instance_.inputs[slot.index]);
      }
      case Slot::Kind::kOutput:
        return storage(program_.outputs[slot.index].dtype, instance_.outputs[slot.index]);
      case Slot::Kind::kConstant:
        return slot.bytes.value();
      case Slot::Kind::kArena:
        return instance_.sizes[number];
      case Slot::Kind::kCounters:
        return std::nullopt;  // only kernels touch them
    }
    throw InternalError("a slot of no kind");
  }

  void require(std::string_view node, size_t slot, int64_t bytes) const {
    const std::optional<int64_t> there = bytes_of(slot);
    if (bytes >= 0 && (!there || bytes <= *there)) return;
    throw UserError(fmt::format(
        "node '{}' touches {} bytes of '{}', which has {}: the program was changed; compile the "
        "model again",
        node, bytes, program_.slots[slot].name, there.value_or(0)));
  }

  const Program& program_;
  const ShapeInstance& instance_;
};

}  // namespace

void check_bounds(const Program& program, const ShapeInstance& instance) {
  BoundsCheck(program, instance).run();
}

}  // namespace tenon::kernels
