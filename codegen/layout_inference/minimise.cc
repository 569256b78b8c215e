#include "codegen/layout_inference/minimise.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>

namespace tenon::codegen {

namespace {

constexpr int64_t kCountless = int64_t{1} << 40;

class Minimiser {
 public:
  Minimiser(const std::vector<int>& sizes, std::vector<PriceTable> tables, int& trials)
      : sizes_(sizes), tables_(std::move(tables)), trials_(trials), ways_(sizes.size()) {
    for (size_t i = 0; i < tables_.size(); ++i) know(i);
    for (auto& [choice, tables] : tables_of_) open_.emplace(joint(choice), choice);
  }

  // The least price; ways() says of what.
  int64_t run() {
    while (!open_.empty()) {
      auto [entries, next] = *open_.begin();
      if (entries > kMostPrices) {
        try_each_way();
        break;
      }
      eliminate(next);
    }
    int64_t total = 0;
    for (const PriceTable& table : tables_) {
      if (table.scope.empty()) total += table.prices[0];
    }
    for (size_t i = eliminated_.size(); i-- > 0;) {
      const Eliminated& was = eliminated_[i];
      ways_[was.choice] = was.best[index(was.scope)];
    }
    return total;
  }
  const std::vector<int>& ways() const { return ways_; }

 private:
  struct Eliminated {
    int choice;
    std::vector<int> scope, best;
  };

  // Tables are only ever added; those that were used up have no prices.
  void know(size_t table) {
    for (int choice : tables_[table].scope) tables_of_[choice].push_back(table);
  }

  std::vector<int> neighbours(int choice) {
    std::set<int> out;
    for (size_t table : tables_of_[choice]) {
      if (tables_[table].prices.empty()) continue;
      out.insert(tables_[table].scope.begin(), tables_[table].scope.end());
    }
    out.erase(choice);
    return {out.begin(), out.end()};
  }

  int64_t entries(const std::vector<int>& scope) const {
    int64_t out = 1;
    for (int choice : scope) out = std::min(out * sizes_[choice], kCountless);
    return out;
  }
  // Of the table that eliminating this choice takes.
  int64_t joint(int choice) { return entries(neighbours(choice)) * sizes_[choice]; }

  size_t index(const std::vector<int>& scope) const {
    size_t out = 0;
    for (int choice : scope) {
      out = out * static_cast<size_t>(sizes_[choice]) + static_cast<size_t>(ways_[choice]);
    }
    return out;
  }

  // Calls for every combination of the choices in scope, in the order of a table.
  template <typename Visit>
  void for_ways(const std::vector<int>& scope, const Visit& visit) {
    int64_t count = entries(scope);
    for (int choice : scope) ways_[choice] = 0;
    for (int64_t i = 0; i < count; ++i) {
      visit();
      for (size_t d = scope.size(); d-- > 0;) {
        if (++ways_[scope[d]] < sizes_[scope[d]]) break;
        ways_[scope[d]] = 0;
      }
    }
  }

  std::vector<PriceTable> take_tables_of(int choice) {
    std::vector<PriceTable> out;
    for (size_t table : tables_of_[choice]) {
      if (tables_[table].prices.empty()) continue;
      out.push_back(tables_[table]);
      tables_[table].prices.clear();
    }
    return out;
  }

  void eliminate(int choice) {
    Eliminated done{choice, neighbours(choice), {}};
    for (int other : done.scope) open_.erase({joint(other), other});
    open_.erase({joint(choice), choice});
    std::vector<PriceTable> tables = take_tables_of(choice);
    PriceTable out{done.scope, {}};
    for_ways(done.scope, [&] {
      int64_t least = std::numeric_limits<int64_t>::max();
      int best = 0;
      for (ways_[choice] = 0; ways_[choice] < sizes_[choice]; ++ways_[choice]) {
        int64_t price = 0;
        for (const PriceTable& table : tables) price += table.prices[index(table.scope)];
        if (price >= least) continue;
        least = price;
        best = ways_[choice];
      }
      out.prices.push_back(least);
      done.best.push_back(best);
    });
    tables_.push_back(std::move(out));
    know(tables_.size() - 1);
    for (int other : done.scope) open_.emplace(joint(other), other);
    eliminated_.push_back(std::move(done));
  }

  // The rest of the problem, once for each way that its busiest choice can go.
  void try_each_way() {
    int choice = open_.rbegin()->second;
    int64_t least = std::numeric_limits<int64_t>::max();
    std::vector<int> best;
    for (int way : by_promise(choice)) {
      if (!best.empty() && trials_ <= 0) break;
      --trials_;
      ways_[choice] = way;
      Minimiser rest(sizes_, fixed(choice), trials_);
      int64_t price = rest.run();
      if (price >= least) continue;
      least = price;
      best = rest.ways();
      best[static_cast<size_t>(choice)] = way;
    }
    for (auto [entries, other] : open_) ways_[other] = best[static_cast<size_t>(other)];
    tables_.push_back({{}, {least}});
    open_.clear();
  }

  // Ways of a choice, first the one that would cost least if all others suited it.
  std::vector<int> by_promise(int choice) {
    std::vector<std::pair<int64_t, int>> ways;
    for (int way = 0; way < sizes_[choice]; ++way) {
      ways_[choice] = way;
      int64_t price = 0;
      for (const PriceTable& table : fixed(choice))
        price += *std::ranges::min_element(table.prices);
      ways.emplace_back(price, way);
    }
    std::ranges::sort(ways);
    std::vector<int> out;
    for (auto [price, way] : ways) out.push_back(way);
    return out;
  }

  // The tables with this choice made.
  std::vector<PriceTable> fixed(int choice) {
    std::vector<PriceTable> out;
    int way = ways_[choice];
    for (const PriceTable& table : tables_) {
      if (!table.scope.empty() && !table.prices.empty()) out.push_back(table);
    }
    for (PriceTable& table : out) {
      if (!std::ranges::count(table.scope, choice)) continue;
      std::vector<int> scope = table.scope;
      std::erase(scope, choice);
      std::vector<int64_t> prices;
      for_ways(scope, [&] {
        ways_[choice] = way;
        prices.push_back(table.prices[index(table.scope)]);
      });
      table = {scope, prices};
    }
    return out;
  }

  const std::vector<int>& sizes_;
  std::vector<PriceTable> tables_;
  int& trials_;
  std::vector<int> ways_;
  std::set<std::pair<int64_t, int>> open_;  // the smallest tables first
  std::map<int, std::vector<size_t>> tables_of_;
  std::vector<Eliminated> eliminated_;
};

}  // namespace

std::vector<int> minimise(const std::vector<int>& sizes, std::vector<PriceTable> tables) {
  int trials = kMostTrials;
  Minimiser minimiser(sizes, std::move(tables), trials);
  minimiser.run();
  return minimiser.ways();
}

}  // namespace tenon::codegen
