#include "kernels/tuner/sizes.h"

#include <algorithm>
#include <set>
#include <vector>

#include "graph_partitioner/ir/fusions.h"

namespace tenon::kernels {
namespace {

std::set<std::string> symbols_of(const ir::Graph& graph) {
  std::vector<std::string> found;
  for (size_t id = 0; id < graph.value_count(); ++id) {
    const auto& shape = graph.value(static_cast<ir::ValueId>(id)).shape;
    if (!shape) continue;
    for (const Dim& dim : *shape) dim.collect_symbols(found);
  }
  for (const ir::Requirement& required : graph.requirements()) {
    required.left.collect_symbols(found);
    required.right.collect_symbols(found);
  }
  return {found.begin(), found.end()};
}

// Sizes that count keys: of caches, before and after, of keys that come from elsewhere, of masks.
std::vector<std::string> key_symbols(const ir::Graph& graph) {
  std::vector<std::string> found;
  const auto add = [&](ir::ValueId id, size_t axis_from_end) {
    if (id == ir::kNoValue || !graph.value(id).shape) return;
    const Shape& shape = *graph.value(id).shape;
    if (axis_from_end <= shape.size()) {
      shape[shape.size() - axis_from_end].collect_symbols(found);
    }
  };
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    if (!node.is(ir::kAttention)) continue;
    const ir::Attention attention = ir::Attention::from(node);
    add(attention.past_k, 2);
    add(node.output(1), 2);
    add(attention.mask, 1);
    const std::string& layout = attention.k_layout;
    add(attention.k, layout == "bhds" ? 1 : layout == "bshd" ? 3 : 2);
  }
  return found;
}

// `dim` is a symbol and nothing else: its name.
std::optional<std::string> as_symbol(const Dim& dim) {
  std::vector<std::string> symbols;
  dim.collect_symbols(symbols);
  if (symbols.size() != 1 || !(dim == Dim::symbol(symbols[0]))) return std::nullopt;
  return symbols[0];
}

// Sizes that must be equal are: a symbol that is free takes the other side's number.
void keep_requirements(const ir::Graph& graph, const std::set<std::string>& taken, Sizes& sizes) {
  constexpr int kRounds = 3;  // one may change what another one asks for
  for (int round = 0; round < kRounds; ++round) {
    for (const ir::Requirement& required : graph.requirements()) {
      if (ir::holds(sizes.of(required.left), required.relation, sizes.of(required.right))) continue;
      const auto follow = [&](const Dim& side, const Dim& other) {
        const auto symbol = as_symbol(side);
        if (!symbol || taken.contains(*symbol)) return false;
        sizes.symbols[*symbol] = sizes.of(other);
        return true;
      };
      if (!follow(required.left, required.right)) follow(required.right, required.left);
    }
  }
}

// The least value of a symbol that brings at least `count` rows: rows grow with every symbol of
// theirs.
int64_t value_for(const Dim& rows, const std::string& symbol, int64_t count, Sizes sizes) {
  int64_t low = 1, high = std::max<int64_t>(count, 1);
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    sizes.symbols[symbol] = middle;
    if (sizes.of(rows) < count) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// The last symbol first, where a batch comes before a sequence: one prompt, not many of one token.
std::vector<std::string> symbols_of_rows(const Dim& rows) {
  std::vector<std::string> symbols;
  rows.collect_symbols(symbols);
  std::ranges::reverse(symbols);
  return symbols;
}

// All sizes but those of rows.
Sizes sizes_beside(const ir::Graph& graph, const Dim& rows, int64_t count) {
  Sizes sizes;
  for (const std::string& symbol : symbols_of(graph)) sizes.symbols[symbol] = 1;
  for (const std::string& symbol : key_symbols(graph)) {
    sizes.symbols[symbol] = std::max(kOpenKeys, count);
  }
  for (const std::string& symbol : symbols_of_rows(rows)) sizes.symbols[symbol] = 1;
  return sizes;
}

}  // namespace

int64_t Sizes::of(const Dim& dim) const {
  return dim.evaluate([&](std::string_view symbol) {
    const auto found = symbols.find(symbol);
    return found == symbols.end() ? int64_t{1} : found->second;
  });
}

std::optional<Sizes> sizes_at(const ir::Graph& graph, const Dim& rows, int64_t count) {
  Sizes sizes = sizes_beside(graph, rows, count);
  const std::vector<std::string> of_rows = symbols_of_rows(rows);
  for (const std::string& symbol : of_rows) {
    sizes.symbols[symbol] = value_for(rows, symbol, count, sizes);
    if (sizes.of(rows) == count) break;
    sizes.symbols[symbol] = 1;
  }
  if (sizes.of(rows) != count) return std::nullopt;
  keep_requirements(graph, {of_rows.begin(), of_rows.end()}, sizes);
  return sizes;
}

std::optional<int64_t> rows_measured(const ir::Graph& graph, const Dim& rows,
                                     const RowRange& range) {
  const bool ends = range.last != RowRange::kNoLimit;
  const int64_t wanted = ends ? range.last : std::max(range.first, kOpenRows);
  if (rows.is_constant()) {
    return range.covers({rows.value(), rows.value()}) ? std::optional(rows.value()) : std::nullopt;
  }
  Sizes sizes = sizes_beside(graph, rows, wanted);
  for (const std::string& symbol : symbols_of_rows(rows)) {
    const int64_t value = value_for(rows, symbol, wanted, sizes);
    for (const int64_t nearest : {value, value - 1}) {  // the latter brings fewer than wanted
      sizes.symbols[symbol] = nearest;
      const int64_t count = nearest > 0 ? sizes.of(rows) : 0;
      if (count > 0 && range.covers({count, count})) return count;
    }
    sizes.symbols[symbol] = 1;
  }
  return std::nullopt;
}

}  // namespace tenon::kernels
