// How the symbols of a graph get their numbers from what one Run brings.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/support.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::kernels {

// What is known of an input before any Run, and every Run is held to.
struct ProgramInput {
  std::string name;
  std::optional<Shape> shape;  // nullopt: any
  DType dtype = DType::kUndefined;
  std::optional<std::vector<Dim>> elements = {};  // of a small integer tensor; nullopt: any
};

std::vector<ProgramInput> inputs_of(const ir::Graph& graph);

class SymbolBinding {
 public:
  explicit SymbolBinding(const ir::Graph& graph) : SymbolBinding(inputs_of(graph)) {}
  explicit SymbolBinding(std::span<const ProgramInput> inputs);

  // The extent of input `input` along axis `index`, or its element `index`, is
  // `factor * symbol + summand`.
  struct Source {
    enum class Kind : uint8_t { kExtent, kElement } kind{};
    size_t input = 0, index = 0;
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
  void bind(Source::Kind kind, size_t input, const std::vector<Dim>& dims);
  bool bound(std::string_view symbol) const;
  std::vector<std::string> symbols_;
  std::vector<Source> sources_;
};

}  // namespace tenon::kernels
