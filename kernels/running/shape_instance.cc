#include "kernels/running/shape_instance.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/convert.h"
#include "base/error.h"
#include "kernels/running/buffer_bounds.h"
#include "kernels/running/memory_plan.h"

namespace tenon::kernels {
namespace {

// Waking the runtime's threads costs several microseconds: a Run asks for them where some launch
// has work for the first number. Once they are there, a launch for the second one is shared, too.
constexpr double kRegionNanoseconds = 20e3;
constexpr double kSharedNanoseconds = 6e3;
constexpr double kPieceNanoseconds = 2e3;
constexpr int64_t kPiecesPerThread = 4;

double total_cost(int64_t tasks, int64_t task_cost) {
  return static_cast<double>(tasks) * static_cast<double>(task_cost);
}

class Instantiation {
 public:
  Instantiation(const Program& program, std::span<const int64_t> symbols)
      : program_(program), instance_(std::make_shared<ShapeInstance>()) {
    instance_->symbols.assign(symbols.begin(), symbols.end());
  }

  std::shared_ptr<const ShapeInstance> build(int threads) {
    for (const ProgramInput& input : program_.inputs) {
      instance_->inputs.push_back(input.shape ? dims(*input.shape) : std::vector<int64_t>{});
      instance_->input_elements.push_back(input.elements ? dims(*input.elements)
                                                         : std::vector<int64_t>{});
    }
    for (const ir::Requirement& required : program_.size_checks) check_sizes(required);
    for (const ProgramOutput& output : program_.outputs) {
      instance_->outputs.push_back(dims(output.shape));
    }
    for (const CompiledLaunch& launch : program_.launches) size_launch(launch, threads);
    for (const ShapeWrite& write : program_.shape_writes) {
      instance_->shape_writes.push_back(dims(write.elements));
    }
    place_buffers();
    check_bounds(program_, *instance_);
    return std::move(instance_);
  }

 private:
  int64_t number(const Dim& dim) const {
    return program_.binding.evaluate(dim, instance_->symbols);
  }

  std::vector<int64_t> dims(const std::vector<Dim>& shape) const {
    std::vector<int64_t> result;
    for (const Dim& dim : shape) result.push_back(number(dim));
    return result;
  }

  void check_sizes(const ir::Requirement& required) const {
    const int64_t left = number(required.left), right = number(required.right);
    if (ir::holds(left, required.relation, right)) return;
    throw UserError(
        fmt::format("node '{}': {}", required.node, ir::explain(required, left, right)));
  }

  void size_launch(const CompiledLaunch& launch, int threads) {
    ShapeInstance::LaunchSize size;
    size.tasks = number(launch.tasks);
    size.copy_bytes = number(launch.copy_bytes);
    if (launch.kind == LaunchKind::kCopy && size.copy_bytes == 0) size.tasks = 0;
    const int64_t cost = number(launch.task_cost);
    size.pieces = count_pieces(size.tasks, cost, threads);
    size.first_index = instance_->indices.size();
    for (const Dim& index : launch.indices) instance_->indices.push_back(number(index));
    for (const FetchedBuffer& buffer : launch.fetched) {
      size.fetched_bytes.push_back(number(buffer.bytes));
    }
    if (launch.elidable_copy) {
      size.from_bytes = number(launch.elidable_copy->from_bytes);
      size.to_bytes = number(launch.elidable_copy->to_bytes);
    }
    for (const CheckedIndices& indices : launch.checks) {
      const int64_t bound = number(indices.check.bound);
      const ShapeInstance::Check sized{indices.slot,
                                       indices.dtype,
                                       number(indices.count),
                                       indices.check.from_end ? -bound : indices.check.least,
                                       bound,
                                       indices.check.first,
                                       indices.check.step,
                                       static_cast<size_t>(&indices - launch.checks.data())};
      const Slot& slot = program_.slots[indices.slot];
      if (slot.kind == Slot::Kind::kConstant) {
        check_indices(slot.data.get(), sized, indices.check.node);  // once is enough
      } else {
        size.checks.push_back(sized);
      }
    }
    instance_->is_parallel |= size.pieces > 1 && total_cost(size.tasks, cost) >= kRegionNanoseconds;
    instance_->launches.push_back(std::move(size));
  }

  void place_buffers() {
    std::vector<Lifetime> lifetimes;
    std::vector<size_t> planned;
    for (size_t slot = 0; slot < program_.slots.size(); ++slot) {
      const Slot& described = program_.slots[slot];
      if (described.kind != Slot::Kind::kArena) continue;
      planned.push_back(slot);
      lifetimes.push_back({described.first, described.last, number(described.bytes)});
    }
    const MemoryPlan plan = plan_memory(lifetimes);
    instance_->offsets.assign(program_.slots.size(), -1);
    instance_->sizes.assign(program_.slots.size(), 0);
    for (size_t i = 0; i < planned.size(); ++i) {
      instance_->offsets[planned[i]] = plan.offsets[i];
      instance_->sizes[planned[i]] = lifetimes[i].bytes;
    }
    instance_->arena_bytes = plan.bytes;
    for (size_t slot = 0; slot < program_.slots.size(); ++slot) {
      const Slot& described = program_.slots[slot];
      if (described.is_callers()) instance_->sizes[slot] = number(described.bytes);
    }
    place_counters();
  }

  // Side by side: each is zero between Runs, whatever the shapes were.
  void place_counters() {
    int64_t& bytes = instance_->counter_bytes;
    for (size_t slot = 0; slot < program_.slots.size(); ++slot) {
      const Slot& described = program_.slots[slot];
      if (described.kind != Slot::Kind::kCounters) continue;
      instance_->offsets[slot] = bytes;
      const int64_t wanted = checked_add(number(described.bytes), kArenaAlignment - 1);
      bytes = checked_add(bytes, wanted / kArenaAlignment * kArenaAlignment);
    }
  }

  const Program& program_;
  std::shared_ptr<ShapeInstance> instance_;
};

template <typename Integer>
void check_range(const Integer* data, const ShapeInstance::Check& check, const std::string& node) {
  if (check.first >= check.count) return;
  Integer low = data[check.first], high = low;
  for (int64_t i = check.first; i < check.count; i += check.step) {
    low = std::min(low, data[i]);
    high = std::max(high, data[i]);
  }
  if (low >= check.lowest && high < check.bound) return;
  throw UserError(fmt::format("node '{}': index or length {} is outside [{}, {})", node,
                              low < check.lowest ? low : high, check.lowest, check.bound));
}

}  // namespace

int64_t count_pieces(int64_t tasks, int64_t task_cost, int threads) {
  const double total = total_cost(tasks, task_cost);
  if (threads <= 1 || tasks <= 1 || total < kSharedNanoseconds) return 1;
  const auto affordable = static_cast<int64_t>(std::min(total / kPieceNanoseconds, 1e9));
  return std::max<int64_t>(1, std::min({tasks, affordable, kPiecesPerThread * threads}));
}

std::shared_ptr<const ShapeInstance> instantiate(const Program& program,
                                                 std::span<const int64_t> symbols, int threads) {
  return Instantiation(program, symbols).build(threads);
}

bool is_brought(const CompiledLaunch& launch, const ShapeInstance::LaunchSize& size, uintptr_t from,
                uintptr_t to) {
  if (size.from_bytes == 0 || size.to_bytes == 0) return false;
  if (from == to && size.from_bytes == size.to_bytes) return true;
  const auto from_bytes = static_cast<uintptr_t>(size.from_bytes);
  const auto to_bytes = static_cast<uintptr_t>(size.to_bytes);
  if (from + from_bytes <= to || to + to_bytes <= from) return false;
  throw UserError(fmt::format(
      "node '{}': what it updates ({} bytes) and what that becomes ({} bytes) share part "
      "of their memory; bind one buffer of equal size to both, or two that are apart",
      launch.node, size.from_bytes, size.to_bytes));
}

void store_extents(DType dtype, std::span<const int64_t> extents, void* to) {
  for (size_t i = 0; i < extents.size(); ++i) {
    const uint64_t code = is_integer(dtype) ? static_cast<uint64_t>(extents[i])
                                            : encode(dtype, static_cast<double>(extents[i]));
    store_code(dtype, to, static_cast<int64_t>(i), code);
  }
}

void check_indices(const void* data, const ShapeInstance::Check& check, const std::string& node) {
  if (check.dtype == DType::kI32) {
    check_range(static_cast<const int32_t*>(data), check, node);
  } else if (check.dtype == DType::kI64) {
    check_range(static_cast<const int64_t*>(data), check, node);
  } else {
    throw InternalError(
        fmt::format("node '{}': indices of type {} cannot be checked", node, name(check.dtype)));
  }
}

}  // namespace tenon::kernels
