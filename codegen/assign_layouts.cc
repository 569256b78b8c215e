// Which tile lies how.
#include <algorithm>
#include <optional>

#include "codegen/layouts.h"
#include "codegen/moves.h"

namespace tenon::codegen {

bool is_tensor_core_dot(const Kernel& kernel, const Operation& op) {
  if (op.op != Op::kDot) return false;
  DType a = kernel.types[op.operands[1]].dtype, b = kernel.types[op.operands[2]].dtype;
  return a == b && (a == DType::kF16 || a == DType::kBF16) &&
         kernel.types[op.operands[0]].dtype == DType::kF32;
}

namespace {

void collect(const Region& region, std::vector<const Operation*>& out) {
  for (const Operation& op : region.operations) {
    for (ValueId id : op.results) out[static_cast<size_t>(id)] = &op;
    for (const Region& inner : op.regions) collect(inner, out);
  }
}

}  // namespace

std::vector<const Operation*> definitions_of(const Kernel& kernel) {
  std::vector<const Operation*> out(kernel.types.size());
  collect(kernel.body, out);
  return out;
}

std::optional<RingDot> ring_dot(const Kernel& kernel,
                                const std::vector<const Operation*>& definitions,
                                const Operation& op, int threads) {
  if (!is_tensor_core_dot(kernel, op)) return std::nullopt;
  // The whole slot, in rows of 128 bytes.
  auto slot = [&](ValueId id) -> const Operation* {
    const Operation* read = definitions[id];
    if (!read || read->op != Op::kRead || read->operands[2] != kNone || !read->integers.empty()) {
      return nullptr;
    }
    const Type& ring = kernel.types[read->operands[0]];
    bool whole = ring.shape == kernel.types[id].shape;
    return whole && ring.shape.back() * bit_width(ring.dtype) == 1024 ? read : nullptr;
  };
  const Operation* turned = definitions[op.operands[2]];
  if (!turned || turned->op != Op::kTranspose) return std::nullopt;
  RingDot out{slot(turned->operands[0]), slot(op.operands[1])};
  const std::vector<int>& sums = kernel.types[op.results[0]].shape;
  bool fits = Layout::sums(sums, threads) &&
              Layout::left_operand(kernel.types[op.operands[1]].shape, threads);
  // Every warp has 16 rows of one group.
  if (op.integer > 0) fits = fits && sums[0] * 2 == threads && threads / kWarp % op.integer == 0;
  return out.right && fits ? std::optional(out) : std::nullopt;
}

namespace {

bool is_elementwise(Op op) { return op >= Op::kUnary && op <= Op::kBitcast; }

// Made as easily in one layout as in another.
bool is_flexible(Op op) {
  return is_elementwise(op) || op == Op::kConstant || op == Op::kSplat || op == Op::kIota ||
         op == Op::kBroadcast || op == Op::kLoad || op == Op::kGather || op == Op::kLookup ||
         op == Op::kReshape || op == Op::kRead || op == Op::kTranspose || op == Op::kSlice ||
         op == Op::kConcat || op == Op::kPermute;
}

class LayoutAssignment {
 public:
  LayoutAssignment(const Kernel& kernel, int threads)
      : kernel_(kernel),
        threads_(threads),
        definitions_(definitions_of(kernel)),
        users_(kernel.types.size()),
        layouts_(kernel.types.size()) {
    for (size_t i = 0; i < layouts_.size(); ++i) {
      layouts_[i] = Layout::dealt(kernel.types[i].shape, threads);
    }
    survey(kernel.body, nullptr);
  }

  std::vector<Layout> run() {
    if (!has_tensor_core_dot_) return layouts_;
    do {
      changed_ = false;
      for (const Operation* op : operations_) forward(*op);
      for (size_t i = operations_.size(); i-- > 0;) backward(*operations_[i]);
    } while (changed_);
    return layouts_;
  }

 private:
  struct User {
    const Operation* op;
    size_t operand;
    const Operation* owner;  // of the region that a yield ends
  };

  const std::vector<int>& shape(ValueId id) const { return kernel_.types[id].shape; }

  void survey(const Region& region, const Operation* owner) {
    for (const Operation& op : region.operations) {
      operations_.push_back(&op);
      has_tensor_core_dot_ |= is_tensor_core_dot(kernel_, op);
      rows_together_ |= op.op == Op::kReduce && op.axis == 1;
      for (size_t i = 0; i < op.operands.size(); ++i) {
        if (op.operands[i] != kNone) users_[op.operands[i]].push_back({&op, i, owner});
      }
      for (const Region& inner : op.regions) survey(inner, &op);
    }
  }

  void set(ValueId id, const Layout& layout) {
    if (layouts_[id].is_special()) return;
    layouts_[id] = layout;
    changed_ = true;
  }

  // The layout that `from` has, if it is one of the mma family.
  std::optional<Layout> special(ValueId id) const {
    if (id == kNone || !layouts_[id].is_special()) return std::nullopt;
    return layouts_[id];
  }

  Layout mma(const std::vector<int>& of) const { return Layout::mma(of, threads_, rows_together_); }

  void forward(const Operation& op) {
    if (is_move(kernel_, op) && layouts_[op.operands[0]].is_bits()) {
      if (auto to = moved_forward(kernel_, op, layouts_[op.operands[0]])) set(op.results[0], *to);
      return;
    }
    switch (op.op) {
      case Op::kDot:
        if (!is_tensor_core_dot(kernel_, op)) return;
        if (ring_dot(kernel_, definitions_, op, threads_)) {
          sums_ = Layout::sums(shape(op.results[0]), threads_);
          return set(op.results[0], *sums_);
        }
        return set(op.results[0], mma(shape(op.results[0])));
      case Op::kReduce:
        if (auto from = special(op.operands[0]); from && from->is_mma()) {
          set(op.results[0], op.axis == 1 ? from->rows_of() : from->columns_of());
        }
        return;
      case Op::kReshape:
        if (auto from = special(op.operands[0]); from && keeps(*from, shape(op.results[0]))) {
          set(op.results[0], *from);
        }
        return;
      case Op::kBroadcast:
        return forward_broadcast(op);
      case Op::kLookup:
      case Op::kGather:
        if (auto from = special(op.operands[op.op == Op::kLookup ? 1 : 2])) {
          set(op.results[0], *from);
        }
        return;
      case Op::kFor:
        for (size_t i = 0; i < op.results.size(); ++i) {
          const Region& body = op.regions[0];
          unify({op.operands[3 + i], body.operations.back().operands[i], op.results[i],
                 body.arguments[1 + i]},
                {op.results[i], body.arguments[1 + i]});
        }
        return;
      case Op::kPipeline:
        for (size_t i = 0; i < op.results.size(); ++i) {
          const Region& consume = op.regions[1];
          unify({op.operands[2 + i], consume.operations.back().operands[i], op.results[i],
                 consume.arguments[2 + i]},
                {op.results[i], consume.arguments[2 + i]});
        }
        return;
      case Op::kIf:
        for (size_t i = 0; i < op.results.size(); ++i) {
          unify({op.regions[0].operations.back().operands[i],
                 op.regions[1].operations.back().operands[i]},
                {op.results[i]});
        }
        return;
      default:
        if (!is_elementwise(op.op) || is_move(kernel_, op)) return;
        for (ValueId id : op.operands) {
          if (auto from = special(id)) return set(op.results[0], *from);
        }
    }
  }

  void unify(std::initializer_list<ValueId> sources, std::initializer_list<ValueId> targets) {
    for (ValueId source : sources) {
      auto from = special(source);
      if (!from) continue;
      for (ValueId target : targets) set(target, *from);
      return;
    }
  }

  // A column [m] or [m,1], a row [n] or [1,n], under another shape.
  static bool keeps(const Layout& layout, const std::vector<int>& to) {
    int m = to.size() == 2 ? to[0] : 1, n = to.empty() ? 1 : to.back();
    if (layout.kind == Layout::Kind::kRows) {
      return to == std::vector{layout.rows} || (to.size() == 2 && m == layout.rows && n == 1);
    }
    if (layout.kind == Layout::Kind::kColumns) return m == 1 && n == layout.columns;
    return m == layout.rows && n == layout.columns && to.size() == 2;
  }

  void forward_broadcast(const Operation& op) {
    auto from = special(op.operands[0]);
    const std::vector<int>& to = shape(op.results[0]);
    if (!from || from->is_bits() || to.size() != 2) return;
    if (broadcast_source(op, mma(to)) == *from) set(op.results[0], mma(to));
  }

  // What a broadcast to this mma layout reads without moving anything.
  std::optional<Layout> broadcast_source(const Operation& op, const Layout& to) const {
    const std::vector<int>& from = shape(op.operands[0]);
    if (from == shape(op.results[0])) return to;
    if (from.size() == 2 && from[0] == to.rows && from[1] == 1) return to.rows_of();
    if (!from.empty() && from.back() == to.columns && (from.size() == 1 || from[0] == 1)) {
      return to.columns_of();
    }
    return std::nullopt;
  }

  // What this use of a value would like best; `indifferent` is set where any layout will do.
  std::optional<Layout> wanted(const User& user, bool& indifferent) const {
    const Operation& op = *user.op;
    indifferent = false;
    if (is_move(kernel_, op) && layouts_[op.results[0]].is_bits()) {
      return moved_backward(kernel_, op, user.operand, layouts_[op.results[0]]);
    }
    switch (op.op) {
      case Op::kStore:
        indifferent = user.operand == 2;
        return std::nullopt;
      case Op::kDot:
        if (user.operand == 0) return special(op.results[0]);
        if (user.operand == 1) return left_operand(op);
        return std::nullopt;
      case Op::kTranspose:  // sums that come back from memory are turned as others are
        if (!sums_ || shape(op.operands[0]) != std::vector{sums_->rows, sums_->columns}) break;
        return sums_;
      case Op::kBroadcast: {
        auto to = special(op.results[0]);
        return to && to->is_mma() ? broadcast_source(op, *to) : std::nullopt;
      }
      case Op::kReshape: {
        auto to = special(op.results[0]);
        return to && keeps(*to, shape(op.operands[0])) ? to : std::nullopt;
      }
      case Op::kLookup:
        return user.operand == 1 ? special(op.results[0]) : std::nullopt;
      case Op::kGather:
        return user.operand >= 2 ? special(op.results[0]) : std::nullopt;
      case Op::kFor:
        return user.operand >= 3 ? special(op.results[user.operand - 3]) : std::nullopt;
      case Op::kPipeline:
        return user.operand >= 2 ? special(op.results[user.operand - 2]) : std::nullopt;
      case Op::kYield:
        return special(user.owner->results[user.operand]);
      default:
        if (!is_elementwise(op.op) || is_move(kernel_, op)) return std::nullopt;
        return special(op.results[0]);
    }
    return std::nullopt;
  }

  std::optional<Layout> left_operand(const Operation& dot) const {
    auto ring = ring_dot(kernel_, definitions_, dot, threads_);
    if (!ring || ring->left) return std::nullopt;
    return Layout::left_operand(shape(dot.operands[1]), threads_);
  }

  void backward(const Operation& op) {
    if (!is_flexible(op.op) || layouts_[op.results[0]].is_special()) return;
    std::optional<Layout> all;
    for (const User& user : users_[op.results[0]]) {
      bool indifferent = false;
      auto layout = wanted(user, indifferent);
      if (indifferent) continue;
      if (!layout || (all && *all != *layout)) return;
      all = layout;
    }
    if (!all) return;
    if (all->is_bits() && is_move(kernel_, op)) {
      if (moved_backward(kernel_, op, 0, *all)) set(op.results[0], *all);
      return;
    }
    if (op.op >= Op::kTranspose && op.op <= Op::kPermute) return;
    if (op.op == Op::kReshape && !keeps(*all, shape(op.operands[0]))) return;
    if (op.op == Op::kBroadcast && kernel_.types[op.operands[0]].elements() > 1 &&
        !(all->is_mma() && broadcast_source(op, *all))) {
      return;
    }
    set(op.results[0], *all);
  }

  const Kernel& kernel_;
  int threads_;
  std::vector<const Operation*> definitions_;
  std::vector<const Operation*> operations_;
  std::vector<std::vector<User>> users_;
  std::vector<Layout> layouts_;
  std::optional<Layout> sums_;  // of products that read rings
  bool has_tensor_core_dot_ = false, rows_together_ = false, changed_ = false;
};

}  // namespace

std::vector<Layout> assign_layouts(const Kernel& kernel, int threads) {
  return LayoutAssignment(kernel, threads).run();
}

}  // namespace tenon::codegen
