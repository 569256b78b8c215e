#include "codegen/pdl.h"

#include <algorithm>

#include "codegen/arch_spec.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {
namespace {

class Survey {
 public:
  explicit Survey(const Kernel& kernel) : kernel_(kernel) {
    pdl_.parameters.resize(kernel.parameters.size());
  }

  Pdl run() {
    visit(kernel_.body);
    pdl_.wait = place_of_wait();
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      pdl_.parameters[i].before_wait = is_before_wait(i);
    }
    pdl_.always_waits = pdl_.wait != Pdl::Wait::kLate || stores_late();
    return std::move(pdl_);
  }

 private:
  void visit(const Region& region) {
    for (const Operation& op : region.operations) {
      visit(op);
      for (const Region& inner : op.regions) visit(inner);
    }
  }

  void visit(const Operation& op) {
    const OpInfo& known = info(op.op);
    for_each_buffer(op, known.reads, [&](ValueId id) {
      if (auto* buffer = parameter(id)) {
        buffer->read = true;
        if (known.fetches) buffer->fetched = true;
      }
    });
    for_each_buffer(op, known.writes, [&](ValueId id) {
      if (auto* buffer = parameter(id)) buffer->written = true;
    });
    if (op.op == Op::kPipeline) has_pipelines_ = true;
    const bool is_number =
        op.op == Op::kLoad && kernel_.types[static_cast<size_t>(op.results[0])].shape.empty();
    if (!is_number) return;
    if (auto* number = parameter(op.operands[0])) numbers_.push_back(number);
  }

  // Null: scratch of the kernel.
  BufferTouch* parameter(ValueId id) {
    const auto index = static_cast<size_t>(id);
    return index < pdl_.parameters.size() ? &pdl_.parameters[index] : nullptr;
  }

  Pdl::Wait place_of_wait() const {
    using Wait = Pdl::Wait;
    if (!has_pipelines_) return kernel_.pdl ? Wait::kFirst : Wait::kNone;
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      if (pdl_.parameters[i].fetched && !kernel_.parameters[i].constant) return Wait::kFirst;
    }
    return Wait::kLate;
  }

  bool is_before_wait(size_t index) const {
    const Parameter& parameter = kernel_.parameters[index];
    const BufferTouch& touch = pdl_.parameters[index];
    if (!touch.read && !touch.written) return false;
    if (pdl_.wait == Pdl::Wait::kLate) return parameter.constant || parameter.own;
    // The copying thread fetches, and reads the numbers that say what.
    const bool copies = touch.fetched || std::ranges::count(numbers_, &touch) > 0;
    return has_pipelines_ && parameter.constant && copies;
  }

  bool stores_late() const {
    return std::ranges::any_of(pdl_.parameters, [](const BufferTouch& touch) {
      return touch.written && !touch.before_wait;
    });
  }

  const Kernel& kernel_;
  Pdl pdl_;
  std::vector<const BufferTouch*> numbers_;  // loaded one by one
  bool has_pipelines_ = false;
};

}  // namespace

bool has_pdl(const GpuTarget& target) { return arch_spec(target.arch).uses.pdl; }

Pdl pdl_of(const Kernel& kernel) { return Survey(kernel).run(); }

}  // namespace tenon::codegen
