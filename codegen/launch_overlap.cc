#include "codegen/launch_overlap.h"

#include <algorithm>

namespace tenon::codegen {
namespace {

class Survey {
 public:
  explicit Survey(const Kernel& kernel) : kernel_(kernel) {
    overlap_.parameters.resize(kernel.parameters.size());
  }

  LaunchOverlap run() {
    visit(kernel_.body);
    overlap_.wait = place_of_wait();
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      overlap_.parameters[i].early = is_early(i);
    }
    overlap_.always_waits = overlap_.wait != LaunchOverlap::Wait::kLate || stores_late();
    return std::move(overlap_);
  }

 private:
  void visit(const Region& region) {
    for (const Operation& op : region.operations) {
      visit(op);
      for (const Region& inner : op.regions) visit(inner);
    }
  }

  void visit(const Operation& op) {
    switch (op.op) {
      case Op::kLoad:
        if (kernel_.types[static_cast<size_t>(op.results[0])].shape.empty()) {
          if (auto* number = parameter(op.operands[0])) numbers_.push_back(number);
        }
        [[fallthrough]];
      case Op::kGather:
        if (auto* buffer = parameter(op.operands[0])) buffer->read = true;
        return;
      case Op::kArrive:
        if (auto* buffer = parameter(op.operands[0])) buffer->read = true;
        [[fallthrough]];
      case Op::kStore:
      case Op::kScatter:
        if (auto* buffer = parameter(op.operands[0])) buffer->written = true;
        return;
      case Op::kFetchRun:
      case Op::kFetchBox:
        if (auto* buffer = parameter(op.operands[2])) buffer->read = buffer->fetched = true;
        return;
      case Op::kPipeline:
        has_pipelines_ = true;
        return;
      default:
        return;
    }
  }

  // Null: scratch of the kernel.
  BufferTouch* parameter(ValueId id) {
    const auto index = static_cast<size_t>(id);
    return index < overlap_.parameters.size() ? &overlap_.parameters[index] : nullptr;
  }

  LaunchOverlap::Wait place_of_wait() const {
    using Wait = LaunchOverlap::Wait;
    if (!has_pipelines_) return kernel_.overlaps ? Wait::kFirst : Wait::kNone;
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      if (overlap_.parameters[i].fetched && !kernel_.parameters[i].constant) return Wait::kFirst;
    }
    return Wait::kLate;
  }

  bool is_early(size_t index) const {
    const Parameter& parameter = kernel_.parameters[index];
    const BufferTouch& touch = overlap_.parameters[index];
    if (!touch.read && !touch.written) return false;
    if (overlap_.wait == LaunchOverlap::Wait::kLate) return parameter.constant || parameter.own;
    // The copying thread fetches, and reads the numbers that say what.
    const bool copies = touch.fetched || std::ranges::count(numbers_, &touch) > 0;
    return has_pipelines_ && parameter.constant && copies;
  }

  bool stores_late() const {
    return std::ranges::any_of(overlap_.parameters, [](const BufferTouch& touch) {
      return touch.written && !touch.early;
    });
  }

  const Kernel& kernel_;
  LaunchOverlap overlap_;
  std::vector<const BufferTouch*> numbers_;  // loaded one by one
  bool has_pipelines_ = false;
};

}  // namespace

bool overlaps_launches(const GpuTarget& target) { return target.arch == "sm_90a"; }

LaunchOverlap launch_overlap(const Kernel& kernel) { return Survey(kernel).run(); }

}  // namespace tenon::codegen
