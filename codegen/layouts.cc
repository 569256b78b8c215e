#include "codegen/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <tuple>

namespace tenon::codegen {

namespace {

constexpr int kMaxRun = 8;
constexpr int kFragmentRows = 16, kFragmentColumns = 8, kFragmentRegisters = 4;

int fragments(int size, int of) { return (size + of - 1) / of; }

}  // namespace

Layout Layout::uniform(int threads) {
  Layout out;
  out.threads = threads;
  return out;
}

Layout Layout::dealt(const std::vector<int>& shape, int threads) {
  if (shape.empty()) return uniform(threads);
  Layout out = uniform(threads);
  out.kind = Kind::kDealt;
  out.rows = shape.size() == 2 ? shape[0] : 1;
  out.columns = shape.back();
  auto share = static_cast<unsigned>(std::max<int64_t>(1, out.elements() / threads));
  out.run = std::min(kMaxRun, static_cast<int>(std::bit_floor(share)));
  return out;
}

Layout Layout::mma(const std::vector<int>& shape, int threads, bool rows_together) {
  Layout best = uniform(threads);
  best.kind = Kind::kMma;
  best.rows = shape[0];
  best.columns = shape[1];
  int rows = fragments(shape[0], kFragmentRows), columns = fragments(shape[1], kFragmentColumns);
  // Most warps busy first, then the fewest operands to read for one step along k.
  std::optional<std::tuple<int, int>> best_cost;
  for (int m = 1; m <= threads / kWarp && rows % m == 0; m *= 2) {
    for (int n = 1; m * n <= threads / kWarp && columns % n == 0; n *= 2) {
      int operands = rows / m * kFragmentRows + columns / n * kFragmentColumns;
      std::tuple cost{-m * n, rows_together ? n : operands};
      if (best_cost && *best_cost <= cost) continue;
      best_cost = cost;
      best.warps_m = m;
      best.warps_n = n;
    }
  }
  return best;
}

Layout Layout::rows_of() const {
  Layout out = *this;
  out.kind = Kind::kRows;
  out.columns = out.warps_n = 1;
  return out;
}

Layout Layout::columns_of() const {
  Layout out = *this;
  out.kind = Kind::kColumns;
  out.rows = 1;
  return out;
}

int64_t Layout::elements() const { return int64_t{rows} * columns; }
int Layout::fragments_m() const { return fragments(rows, kFragmentRows) / warps_m; }
int Layout::fragments_n() const { return fragments(columns, kFragmentColumns) / warps_n; }

int Layout::registers() const {
  switch (kind) {
    case Kind::kUniform:
      return 1;
    case Kind::kDealt: {
      int64_t wave = int64_t{threads} * run;
      return static_cast<int>((elements() + wave - 1) / wave) * run;
    }
    case Kind::kMma:
      return fragments_m() * fragments_n() * kFragmentRegisters;
    case Kind::kRows:
      return fragments_m() * 2;
    default:
      return fragments_n() * 2;
  }
}

int64_t Layout::element_of(int thread, int reg) const {
  if (kind == Kind::kUniform) return 0;
  if (kind == Kind::kDealt) {
    if (elements() < threads) return thread % elements();
    int64_t element = (int64_t{reg / run} * threads + thread) * run + reg % run;
    return element < elements() ? element : -1;
  }
  int warp = thread / kWarp, lane = thread % kWarp;
  int warp_m = warp % warps_m, warp_n = warp / warps_m % warps_n;
  auto row_of = [&](int fragment, int half) {
    return (warp_m * fragments_m() + fragment) * kFragmentRows + lane / 4 + 8 * half;
  };
  auto column_of = [&](int fragment, int odd) {
    return (warp_n * fragments_n() + fragment) * kFragmentColumns + lane % 4 * 2 + odd;
  };
  if (kind == Kind::kRows) {
    int row = row_of(reg / 2, reg % 2);
    return row < rows ? row : -1;
  }
  if (kind == Kind::kColumns) {
    int column = column_of(reg / 2, reg % 2);
    return column < columns ? column : -1;
  }
  int fragment = reg / kFragmentRegisters, place = reg % kFragmentRegisters;
  int row = row_of(fragment / fragments_n(), place / 2);
  int column = column_of(fragment % fragments_n(), place % 2);
  return row < rows && column < columns ? int64_t{row} * columns + column : -1;
}

bool Layout::is_first_copy(int thread, int) const {
  int warp = thread / kWarp, lane = thread % kWarp;
  switch (kind) {
    case Kind::kUniform:
      return thread == 0;
    case Kind::kDealt:
      return elements() >= threads || thread < elements();
    case Kind::kMma:
      return warp < warps_m * warps_n;
    case Kind::kRows:
      return warp < warps_m && lane % 4 == 0;
    default:
      return warp % warps_m == 0 && warp < warps_m * warps_n && lane / 4 == 0;
  }
}

std::string Layout::text() const {
  constexpr std::array kNames{"uniform", "dealt", "mma", "rows", "columns"};
  std::string out = fmt::format("{}[{},{}]", kNames[static_cast<size_t>(kind)], rows, columns);
  if (kind == Kind::kDealt) return out + fmt::format(" run {}", run);
  return belongs_to_mma() ? out + fmt::format(" warps {}x{}", warps_m, warps_n) : out;
}

bool is_tensor_core_dot(const Kernel& kernel, const Operation& op) {
  if (op.op != Op::kDot) return false;
  DType a = kernel.types[op.operands[1]].dtype, b = kernel.types[op.operands[2]].dtype;
  return a == b && (a == DType::kF16 || a == DType::kBF16) &&
         kernel.types[op.operands[0]].dtype == DType::kF32;
}

namespace {

bool is_elementwise(Op op) { return op >= Op::kUnary && op <= Op::kBitcast; }

// Made as easily in one layout as in another.
bool is_flexible(Op op) {
  return is_elementwise(op) || op == Op::kConstant || op == Op::kSplat || op == Op::kIota ||
         op == Op::kBroadcast || op == Op::kLoad || op == Op::kGather || op == Op::kLookup ||
         op == Op::kReshape;
}

class LayoutAssignment {
 public:
  LayoutAssignment(const Kernel& kernel, int threads)
      : kernel_(kernel),
        threads_(threads),
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
    if (layouts_[id].belongs_to_mma()) return;
    layouts_[id] = layout;
    changed_ = true;
  }

  // The layout that `from` has, if it is one of the mma family.
  std::optional<Layout> special(ValueId id) const {
    if (id == kNone || !layouts_[id].belongs_to_mma()) return std::nullopt;
    return layouts_[id];
  }

  Layout mma(const std::vector<int>& of) const { return Layout::mma(of, threads_, rows_together_); }

  void forward(const Operation& op) {
    switch (op.op) {
      case Op::kDot:
        if (is_tensor_core_dot(kernel_, op)) set(op.results[0], mma(shape(op.results[0])));
        return;
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
      case Op::kIf:
        for (size_t i = 0; i < op.results.size(); ++i) {
          unify({op.regions[0].operations.back().operands[i],
                 op.regions[1].operations.back().operands[i]},
                {op.results[i]});
        }
        return;
      default:
        if (!is_elementwise(op.op)) return;
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
    if (!from || to.size() != 2) return;
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
    switch (op.op) {
      case Op::kStore:
        indifferent = user.operand == 2;
        return std::nullopt;
      case Op::kDot:
        if (user.operand != 0) return std::nullopt;
        return special(op.results[0]);
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
      case Op::kYield:
        return special(user.owner->results[user.operand]);
      default:
        return is_elementwise(op.op) ? special(op.results[0]) : std::nullopt;
    }
  }

  void backward(const Operation& op) {
    if (!is_flexible(op.op) || layouts_[op.results[0]].belongs_to_mma()) return;
    std::optional<Layout> all;
    for (const User& user : users_[op.results[0]]) {
      bool indifferent = false;
      auto layout = wanted(user, indifferent);
      if (indifferent) continue;
      if (!layout || (all && *all != *layout)) return;
      all = layout;
    }
    if (!all) return;
    if (op.op == Op::kReshape && !keeps(*all, shape(op.operands[0]))) return;
    if (op.op == Op::kBroadcast && kernel_.types[op.operands[0]].elements() > 1 &&
        !(all->is_mma() && broadcast_source(op, *all))) {
      return;
    }
    set(op.results[0], *all);
  }

  const Kernel& kernel_;
  int threads_;
  std::vector<const Operation*> operations_;
  std::vector<std::vector<User>> users_;
  std::vector<Layout> layouts_;
  bool has_tensor_core_dot_ = false, rows_together_ = false, changed_ = false;
};

}  // namespace

std::vector<Layout> assign_layouts(const Kernel& kernel, int threads) {
  return LayoutAssignment(kernel, threads).run();
}

}  // namespace tenon::codegen
