#include "codegen/layout_inference/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"
#include "codegen/layout_inference/minimise.h"

namespace tenon::codegen {

namespace {

using Kind = Constraint::Kind;

bool divides(const System& system, const Constraint& constraint) {
  return system.shape(constraint.a)[static_cast<size_t>(constraint.axis)] % constraint.divisor == 0;
}

// Tiles that lie alike, and the ways that instructions leave open to them.
class Classes {
 public:
  explicit Classes(const System& system) : parents_(system.kernel.types.size()) {
    std::iota(parents_.begin(), parents_.end(), 0);
  }

  ValueId of(ValueId id) const {
    while (parents_[static_cast<size_t>(id)] != id) id = parents_[static_cast<size_t>(id)];
    return id;
  }
  // False: nothing is left.
  bool add(const System& system, const Constraint& constraint) {
    switch (constraint.kind) {
      case Kind::kDivides:
        return divides(system, constraint);
      case Kind::kOneOf:
        return narrow(of(constraint.a), constraint.layouts);
      case Kind::kEquals: {
        ValueId a = of(constraint.a), b = of(constraint.b);
        if (a == b) return true;
        parents_[static_cast<size_t>(b)] = a;
        auto ways = ways_.find(b);
        return ways == ways_.end() || narrow(a, ways->second);
      }
      default:
        return true;
    }
  }
  const std::vector<Layout>* ways(ValueId class_id) const {
    auto found = ways_.find(class_id);
    return found == ways_.end() ? nullptr : &found->second;
  }

 private:
  bool narrow(ValueId class_id, const std::vector<Layout>& to) {
    auto [known, is_new] = ways_.try_emplace(class_id, to);
    if (is_new) return !to.empty();
    std::erase_if(known->second, [&](const Layout& way) { return !std::ranges::count(to, way); });
    return !known->second.empty();
  }

  std::vector<ValueId> parents_;
  std::map<ValueId, std::vector<Layout>> ways_;
};

std::optional<Classes> reduced(const System& system, const std::vector<const Constraint*>& hard) {
  Classes out(system);
  for (const Constraint* constraint : hard) {
    if (!out.add(system, *constraint)) return std::nullopt;
  }
  return out;
}

std::vector<const Constraint*> hard_constraints(const System& system) {
  std::vector<const Constraint*> out;
  for (const Constraint& constraint : system.constraints) {
    if (constraint.is_hard()) out.push_back(&constraint);
  }
  return out;
}

class Search {
 public:
  Search(const System& system, const Classes& classes) : system_(system), classes_(classes) {
    candidates_.resize(system.kernel.types.size());
    std::vector<int> reads(candidates_.size());
    for (const Constraint& constraint : system.constraints) {
      reads[static_cast<size_t>(constraint.a)] += constraint.kind == Kind::kRelayout;
    }
    for (size_t id = 0; id < candidates_.size(); ++id) {
      start(static_cast<ValueId>(id), /*only_read=*/reads[id] == system.uses[id]);
    }
    passed_on_.resize(2 * system.constraints.size());
    offer_instructions_layouts();
    while (offer_neighbours()) {
    }
  }

  std::vector<Layout> run() {
    choose_together();
    // Splats that are not only read lie in any way for nothing: they follow those who read them.
    for (size_t id = candidates_.size(); id-- > 0;) {
      if (is_open(static_cast<ValueId>(id)) && chosen_[id] < 0) follow(static_cast<ValueId>(id));
    }
    std::vector<Layout> out;
    for (size_t id = 0; id < candidates_.size(); ++id) {
      auto of = static_cast<size_t>(classes_.of(static_cast<ValueId>(id)));
      out.push_back(candidates_[of][static_cast<size_t>(std::max(chosen_[of], 0))]);
    }
    return out;
  }

 private:
  std::vector<Layout>& ways(ValueId id) { return candidates_[static_cast<size_t>(id)]; }
  bool is_open(ValueId id) { return classes_.of(id) == id && ways(id).size() > 1; }
  bool is_splat(ValueId id) const { return system_.splats[static_cast<size_t>(id)]; }

  void start(ValueId id, bool only_read) {
    if (classes_.of(id) != id) return;
    const std::vector<Layout>* given = classes_.ways(id);
    if (!given && is_splat(id) && only_read && !system_.shape(id).empty()) {
      ways(id) = {Layout::splat(system_.shape(id), system_.threads)};
      return;
    }
    ways(id) = given ? *given : std::vector{Layout::dealt(system_.shape(id), system_.threads)};
    // Both are the same for most shapes.
    ways(id).erase(std::ranges::unique(ways(id)).begin(), ways(id).end());
  }

  bool offer(ValueId id, const Layout& layout) {
    ValueId to = classes_.of(id);
    if (classes_.ways(to) || ways(to)[0].is_splat()) return false;
    auto known =
        std::ranges::find_if(ways(to), [&](const Layout& way) { return way.same_as(layout); });
    if (known != ways(to).end()) {
      // One name for one thing: what an instruction calls it goes on to the neighbours.
      if (known->kind != Layout::Kind::kDealt || layout.kind == Layout::Kind::kDealt) return false;
      *known = layout;
      pass_on_again(to);
      return true;
    }
    if (ways(to).size() == kMostCandidates) return false;
    ways(to).push_back(layout);
    return true;
  }

  void pass_on_again(ValueId class_id) {
    for (size_t i = 0; i < system_.constraints.size(); ++i) {
      const Constraint& constraint = system_.constraints[i];
      if (classes_.of(constraint.a) == class_id) passed_on_[2 * i + 1] = 0;
      if (constraint.b != kNone && classes_.of(constraint.b) == class_id) passed_on_[2 * i] = 0;
    }
  }

  // Tiles as large as sums may lie as they do: sums that come back from memory, for example.
  void offer_instructions_layouts() {
    for (const Constraint& fixed : system_.constraints) {
      if (fixed.kind != Kind::kOneOf) continue;
      for (const Constraint& other : system_.constraints) {
        if (system_.shape(other.a) != system_.shape(fixed.a)) continue;
        for (const Layout& layout : fixed.layouts) offer(other.a, layout);
      }
    }
  }

  bool offer_neighbours() {
    bool changed = false;
    for (size_t i = 0; i < system_.constraints.size(); ++i) {
      const Constraint& constraint = system_.constraints[i];
      if (constraint.kind != Kind::kRelayout && constraint.kind != Kind::kTransfer) continue;
      for (bool forward : {true, false}) {
        ValueId from = classes_.of(forward ? constraint.a : constraint.b);
        size_t& passed_on = passed_on_[2 * i + (forward ? 1 : 0)];
        for (; passed_on < ways(from).size(); ++passed_on) {
          const Layout layout = ways(from)[passed_on];
          for (const Layout& offered : proposals(system_, constraint, forward, layout)) {
            changed |= offer(forward ? constraint.b : constraint.a, offered);
          }
        }
      }
    }
    return changed;
  }

  // Everything but splats.
  void choose_together() {
    chosen_.assign(candidates_.size(), -1);
    std::vector<int> sizes(candidates_.size(), 1);
    for (size_t id = 0; id < candidates_.size(); ++id) {
      sizes[id] = std::max(1, static_cast<int>(candidates_[id].size()));
    }
    std::map<std::vector<int>, PriceTable> tables;
    for (const Constraint& constraint : system_.constraints) {
      if (constraint.is_hard() || is_splat(constraint.a)) continue;
      PriceTable table = table_of(constraint);
      if (table.scope.empty()) continue;
      auto [known, is_new] = tables.try_emplace(table.scope, table);
      if (is_new) continue;
      for (size_t i = 0; i < table.prices.size(); ++i) known->second.prices[i] += table.prices[i];
    }
    std::vector<PriceTable> all;
    for (auto& [scope, table] : tables) {
      for (int id : scope) chosen_[static_cast<size_t>(id)] = 0;
      all.push_back(std::move(table));
    }
    std::vector<int> best = minimise(sizes, std::move(all));
    for (size_t id = 0; id < chosen_.size(); ++id) {
      if (chosen_[id] == 0) chosen_[id] = best[id];
    }
  }

  PriceTable table_of(const Constraint& constraint) {
    ValueId a = classes_.of(constraint.a);
    ValueId b = constraint.kind == Kind::kWork ? kNone : classes_.of(constraint.b);
    PriceTable out;
    if (is_open(a)) out.scope.push_back(a);
    if (b != kNone && b != a && is_open(b)) out.scope.push_back(b);
    if (out.scope.empty()) return out;
    const std::vector<Layout> none(1);
    bool swapped = out.scope.size() == 2 && a > b;
    if (swapped) std::swap(out.scope[0], out.scope[1]);
    const std::vector<Layout>& of_a = ways(a);
    const std::vector<Layout>& of_b = b == kNone ? none : ways(b);
    size_t rows = swapped ? of_b.size() : of_a.size(),
           columns = swapped ? of_a.size() : of_b.size();
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        const Layout &first = of_a[swapped ? j : i], &second = of_b[swapped ? i : j];
        if (a == b && i != j) continue;
        out.prices.push_back(price(system_, constraint, first, b == kNone ? nullptr : &second));
      }
    }
    return out;
  }

  void follow(ValueId id) {
    int64_t least = -1;
    for (size_t way = 0; way < ways(id).size(); ++way) {
      int64_t sum = 0;
      for (const Constraint& constraint : system_.constraints) {
        if (constraint.kind == Kind::kRelayout && classes_.of(constraint.a) == id) {
          ValueId user = classes_.of(constraint.b);
          auto at = static_cast<size_t>(std::max(chosen_[static_cast<size_t>(user)], 0));
          sum += price(system_, constraint, ways(id)[way], &ways(user)[at]);
        }
      }
      if (least >= 0 && sum >= least) continue;
      least = sum;
      chosen_[static_cast<size_t>(id)] = static_cast<int>(way);
    }
  }

  const System& system_;
  const Classes& classes_;
  std::vector<std::vector<Layout>> candidates_;  // of classes
  std::vector<int> chosen_;
  std::vector<size_t> passed_on_;  // candidates, by constraint and direction
};

}  // namespace

std::vector<const Constraint*> unsatisfied_core(const System& system) {
  std::vector<const Constraint*> core = hard_constraints(system);
  if (reduced(system, core)) return {};
  for (size_t i = core.size(); i-- > 0;) {
    std::vector<const Constraint*> without = core;
    without.erase(without.begin() + static_cast<int64_t>(i));
    if (!reduced(system, without)) core = std::move(without);
  }
  return core;
}

std::vector<Layout> solve(const System& system) {
  auto classes = reduced(system, hard_constraints(system));
  if (classes) return Search(system, *classes).run();
  ConstraintPrinter print(system);
  std::string reasons;
  for (const Constraint* constraint : unsatisfied_core(system)) {
    reasons += "\n  " + print(*constraint);
  }
  throw UserError(fmt::format(
      "kernel @{}: no layout of its tiles over {} threads obeys all of these; change a tile's size "
      "or the number of threads:{}",
      system.kernel.name, system.threads, reasons));
}

namespace {

// Nothing: it does not hold.
std::optional<int64_t> price_under(const System& system, const Constraint& constraint,
                                   const std::vector<Layout>& layouts) {
  const Layout& a = layouts[static_cast<size_t>(constraint.a)];
  const Layout* b = constraint.b == kNone ? nullptr : &layouts[static_cast<size_t>(constraint.b)];
  bool holds = true;
  if (constraint.kind == Kind::kEquals) holds = a == *b;
  if (constraint.kind == Kind::kOneOf) holds = std::ranges::count(constraint.layouts, a) > 0;
  if (constraint.kind == Kind::kDivides) holds = divides(system, constraint);
  return holds ? std::optional(price(system, constraint, a, b)) : std::nullopt;
}

}  // namespace

std::optional<int64_t> price_of(const System& system, const std::vector<Layout>& layouts) {
  int64_t total = 0;
  for (const Constraint& constraint : system.constraints) {
    auto price = price_under(system, constraint, layouts);
    if (!price) return std::nullopt;
    total += *price;
  }
  return total;
}

std::string priced(const System& system, const std::vector<Layout>& layouts) {
  ConstraintPrinter print(system);
  std::string out;
  for (const Constraint& constraint : system.constraints) {
    int64_t price = price_under(system, constraint, layouts).value_or(0);
    out += fmt::format("{:>10}  {}\n", constraint.is_hard() ? "must" : std::to_string(price),
                       print(constraint));
  }
  return out + fmt::format("{:>10}  in all\n", price_of(system, layouts).value_or(0));
}

}  // namespace tenon::codegen
