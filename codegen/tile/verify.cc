#include "codegen/tile/verify.h"

#include <fmt/format.h>

#include "base/nesting.h"

namespace tenon::codegen {

namespace {

// Walks regions, keeping track of what is defined where.
class KernelVerifier {
 public:
  explicit KernelVerifier(const Kernel& kernel)
      : kernel_(kernel), visible_(kernel.types.size()), defined_(kernel.types.size()) {}

  Support run() {
    if (kernel_.types.size() < kernel_.parameters.size()) {
      return Support::no("a parameter has no value");
    }
    for (size_t i = 0; i < kernel_.parameters.size(); ++i) {
      const Parameter& parameter = kernel_.parameters[i];
      if (parameter.type != kernel_.types[i] || (parameter.type.kind != Type::Kind::kBuffer &&
                                                 parameter.type.kind != Type::Kind::kIndex)) {
        return Support::no(fmt::format("parameter %{} must be a buffer or an index, is {}",
                                       parameter.name, text(parameter.type)));
      }
      define(static_cast<ValueId>(i));
    }
    if (!kernel_.body.arguments.empty()) return Support::no("the body takes no arguments");
    return visit(kernel_.body, nullptr, {});
  }

 private:
  // `yields`: what the last operation must yield, or null for the body, which yields nothing.
  Support visit(const Region& region, const std::vector<ValueId>* yields,
                std::span<const Type> arguments);
  Support visit(const Operation& operation);
  Support check_yield(const Region& region, const std::vector<ValueId>& results);

  bool define(ValueId id) {
    if (id < 0 || static_cast<size_t>(id) >= defined_.size() || defined_[id]) return false;
    defined_[id] = visible_[id] = true;
    scope_.push_back(id);
    return true;
  }

  const Kernel& kernel_;
  std::vector<bool> visible_, defined_;
  std::vector<ValueId> scope_;
  Nesting nesting_;
  int64_t scratch_bytes_ = 0;
};

Support KernelVerifier::visit(const Region& region, const std::vector<ValueId>* yields,
                              std::span<const Type> arguments) {
  if (!nesting_.has_room()) return Support::no("expected " + Nesting::limit("regions"));
  const Nesting::Level level = nesting_.enter();
  size_t scope = scope_.size();
  if (region.arguments.size() != arguments.size()) {
    return Support::no(fmt::format("a region takes {} arguments, expected {}",
                                   region.arguments.size(), arguments.size()));
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!define(region.arguments[i])) return Support::no("a region argument is defined twice");
    if (kernel_.types[region.arguments[i]] != arguments[i]) {
      return Support::no(fmt::format("region argument {} must be {}", i, text(arguments[i])));
    }
  }
  for (const Operation& operation : region.operations) {
    if (operation.op == Op::kYield && (!yields || &operation != &region.operations.back())) {
      return Support::no("yield: belongs at the end of a region");
    }
    if (Support support = visit(operation); !support) return support;
  }
  if (yields) {
    if (Support support = check_yield(region, *yields); !support) return support;
  }
  for (; scope_.size() > scope; scope_.pop_back()) visible_[scope_.back()] = false;
  return Support::yes();
}

Support KernelVerifier::check_yield(const Region& region, const std::vector<ValueId>& results) {
  if (region.operations.empty() || region.operations.back().op != Op::kYield) {
    return Support::no("a region must end in yield");
  }
  const Operation& yield = region.operations.back();
  if (yield.operands.size() != results.size()) {
    return Support::no(
        fmt::format("yield: expected {} values, got {}", results.size(), yield.operands.size()));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    const Type &expected = kernel_.types[results[i]], &got = kernel_.types[yield.operands[i]];
    if (expected != got) {
      return Support::no(
          fmt::format("yield: value {} must be {}, is {}", i, text(expected), text(got)));
    }
  }
  return Support::yes();
}

Support KernelVerifier::visit(const Operation& operation) {
  for (ValueId id : operation.operands) {
    if (id == kNone) continue;
    if (id < 0 || static_cast<size_t>(id) >= visible_.size() || !visible_[id]) {
      return Support::no(
          fmt::format("{}: value {} is used where it is not defined", name(operation.op), id));
    }
  }
  if (Support support = check_types(operation, kernel_.types); !support) return support;
  if (operation.op == Op::kAlloc) {
    DType dtype = kernel_.types[operation.results[0]].dtype;
    scratch_bytes_ += operation.integer * ((bit_width(dtype) + 7) / 8);
    if (scratch_bytes_ > kMaxScratchBytes) {
      return Support::no(
          fmt::format("alloc: scratch of the kernel exceeds {} bytes", kMaxScratchBytes));
    }
  }
  std::vector<Type> arguments;
  if (operation.op == Op::kFor) {
    arguments.push_back(Type::index());
    for (ValueId id : operation.results) arguments.push_back(kernel_.types[id]);
  }
  if (operation.op == Op::kPipeline) arguments.assign(2, Type::index());
  for (const Region& region : operation.regions) {
    const bool produce = operation.op == Op::kPipeline && &region == &operation.regions[0];
    static const std::vector<ValueId> nothing;
    if (operation.op == Op::kPipeline && !produce) {
      for (ValueId id : operation.results) arguments.push_back(kernel_.types[id]);
    }
    const std::vector<ValueId>& yields = produce ? nothing : operation.results;
    if (Support support = visit(region, &yields, arguments); !support) return support;
  }
  for (ValueId id : operation.results) {
    if (!define(id)) {
      return Support::no(fmt::format("{}: a result is defined twice", name(operation.op)));
    }
  }
  return Support::yes();
}

}  // namespace

Support verify(const Kernel& kernel) {
  Support support = KernelVerifier(kernel).run();
  if (!support) support.reason = fmt::format("kernel @{}: {}", kernel.name, support.reason);
  return support;
}

}  // namespace tenon::codegen
