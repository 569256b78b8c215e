#include "codegen/tile/product_loops.h"

#include <optional>
#include <string>
#include <unordered_map>

namespace tenon::codegen {
namespace {

// Sums times k that are written out. Of fewer, a call is not worth its while.
constexpr int64_t kFewestProducts = 24;

// What belongs to a task or to a CTA does not move into a function of its own.
bool can_move(const Operation& op) {
  switch (op.op) {
    case Op::kTask:
    case Op::kAlloc:
    case Op::kRing:
    case Op::kPipeline:
    case Op::kTileDot:
      return false;
    default:
      return true;
  }
}

// Copies a loop, numbering its values anew.
class LoopCopy {
 public:
  LoopCopy(const Kernel& from, const std::unordered_map<ValueId, int64_t>& constants)
      : from_(from), constants_(constants) {}

  // Nothing: it needs more than indices and buffers, or is too small.
  std::optional<ProductLoop> of(const Operation& loop) {
    if (!survey(loop) || products_ < kFewestProducts) return std::nullopt;
    for (const ValueId id : taken_) {
      const Type& type = from_.types[static_cast<size_t>(id)];
      if (type.kind != Type::Kind::kIndex && type.kind != Type::Kind::kBuffer) return std::nullopt;
    }
    Kernel& kernel = out_.kernel;
    kernel.name = "product_loop";
    for (const ValueId id : taken_) {
      const Type& type = from_.types[static_cast<size_t>(id)];
      kernel.parameters.push_back({"p" + std::to_string(kernel.parameters.size()), type});
      define(id);
    }
    for (const auto& [id, number] : known_) {
      Operation constant{Op::kIndexConstant};
      constant.integer = number;
      constant.results = {define(id)};
      kernel.body.operations.push_back(std::move(constant));
    }
    kernel.body.operations.push_back(copy(loop));
    out_.loop = &loop;
    out_.arguments = taken_;
    return std::move(out_);
  }

 private:
  // False: something in it cannot move.
  bool survey(const Operation& op) {
    if (!can_move(op)) return false;
    for (const ValueId id : op.operands) take(id);
    for (const ValueId id : op.results) inside_[id] = true;
    if (op.op == Op::kDot || op.op == Op::kDotI8) {
      const std::vector<int>& a = from_.types[static_cast<size_t>(op.operands[1])].shape;
      products_ += int64_t{a[0]} * a[1];
    }
    for (const Region& region : op.regions) {
      for (const ValueId id : region.arguments) inside_[id] = true;
      for (const Operation& inner : region.operations) {
        if (!survey(inner)) return false;
      }
    }
    return true;
  }

  void take(ValueId id) {
    if (id == kNone || !inside_.try_emplace(id, true).second) return;
    if (const auto constant = constants_.find(id); constant != constants_.end()) {
      known_.emplace_back(id, constant->second);
    } else {
      taken_.push_back(id);
    }
  }

  ValueId define(ValueId id) {
    const auto number = static_cast<ValueId>(out_.kernel.types.size());
    out_.kernel.types.push_back(from_.types[static_cast<size_t>(id)]);
    numbers_[id] = number;
    return number;
  }

  Operation copy(const Operation& op) {
    Operation out = op;
    for (ValueId& id : out.operands) {
      if (id != kNone) id = numbers_.at(id);
    }
    for (ValueId& id : out.results) id = define(id);
    for (size_t i = 0; i < op.regions.size(); ++i) {
      Region& region = out.regions[i];
      region.operations.clear();
      for (ValueId& id : region.arguments) id = define(id);
      for (const Operation& inner : op.regions[i].operations) {
        region.operations.push_back(copy(inner));
      }
    }
    return out;
  }

  const Kernel& from_;
  const std::unordered_map<ValueId, int64_t>& constants_;
  ProductLoop out_;
  int64_t products_ = 0;
  std::unordered_map<ValueId, bool> inside_;  // values that the loop defines or has taken
  std::vector<ValueId> taken_;
  std::vector<std::pair<ValueId, int64_t>> known_;
  std::unordered_map<ValueId, ValueId> numbers_;
};

class Search {
 public:
  explicit Search(const Kernel& kernel) : kernel_(kernel) {}

  std::vector<ProductLoop> run() {
    walk(kernel_.body);
    return std::move(found_);
  }

 private:
  void walk(const Region& region) {
    for (const Operation& op : region.operations) {
      if (op.op == Op::kIndexConstant) constants_[op.results[0]] = op.integer;
      if (op.op == Op::kFor && op.results.empty()) {
        if (auto loop = LoopCopy(kernel_, constants_).of(op)) {
          found_.push_back(std::move(*loop));
          continue;
        }
      }
      for (const Region& inner : op.regions) walk(inner);
    }
  }

  const Kernel& kernel_;
  std::unordered_map<ValueId, int64_t> constants_;
  std::vector<ProductLoop> found_;
};

}  // namespace

std::vector<ProductLoop> product_loops(const Kernel& kernel) { return Search(kernel).run(); }

}  // namespace tenon::codegen
