// How the symbols of a graph get their numbers from the shapes of one Run's inputs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels {

class SymbolBinding {
 public:
  explicit SymbolBinding(const ir::Graph& graph);
  // Of inputs with these shapes, where those are known.
  explicit SymbolBinding(std::span<const std::optional<Shape>> inputs);

  // The extent of input `input` along `axis` is `factor * symbol + summand`.
  struct Source {
    size_t input = 0, axis = 0;
    int64_t factor = 1, summand = 0;
  };

  // In one fixed order, which instances are keyed by.
  const std::vector<std::string>& symbols() const { return symbols_; }
  const std::vector<Source>& sources() const { return sources_; }

  // Whether every symbol of `dim` (or of every dim) can be told from the inputs.
  Support covers(const Dim& dim) const;
  Support covers(const Shape& shape) const;

  // `dim` with the symbols at these values.
  int64_t evaluate(const Dim& dim, std::span<const int64_t> values) const;

 private:
  void bind(size_t input, const Shape& shape);
  bool bound(std::string_view symbol) const;
  std::vector<std::string> symbols_;
  std::vector<Source> sources_;
};

}  // namespace tenon::kernels
