#include "kernels/planning/symbol_binding.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon::kernels {
namespace {

std::vector<std::string> symbols_of(const Dim& dim) {
  std::vector<std::string> names;
  dim.collect_symbols(names);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// dim == factor * symbol + summand with numbers on both sides, or nothing.
std::optional<SymbolBinding::Source> solve(const Dim& dim, const std::string& symbol) {
  if (dim == Dim::symbol(symbol)) return SymbolBinding::Source{};
  const auto at = [&](int64_t value) {
    return dim.substitute([&](std::string_view name) -> std::optional<Dim> {
      if (name != symbol) return std::nullopt;
      return Dim(value);
    });
  };
  const Dim at_zero = at(0);
  if (!at_zero.is_constant()) return std::nullopt;
  const Dim slope = at(1) - at_zero;
  if (!slope.is_constant() || slope.is(0)) return std::nullopt;
  if (!(dim == slope * Dim::symbol(symbol) + at_zero)) return std::nullopt;
  return SymbolBinding::Source{0, 0, slope.value(), at_zero.value()};
}

}  // namespace

SymbolBinding::SymbolBinding(const ir::Graph& graph) {
  for (size_t input = 0; input < graph.inputs().size(); ++input) {
    const auto& shape = graph.value(graph.inputs()[input]).shape;
    if (shape) bind(input, *shape);
  }
}

SymbolBinding::SymbolBinding(std::span<const std::optional<Shape>> inputs) {
  for (size_t input = 0; input < inputs.size(); ++input) {
    if (inputs[input]) bind(input, *inputs[input]);
  }
}

void SymbolBinding::bind(size_t input, const Shape& shape) {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (shape[axis].is_constant()) continue;
    const std::vector<std::string> names = symbols_of(shape[axis]);
    if (names.size() != 1 || bound(names.front())) continue;
    auto source = solve(shape[axis], names.front());
    if (!source) continue;
    source->input = input;
    source->axis = axis;
    symbols_.push_back(names.front());
    sources_.push_back(*source);
  }
}

bool SymbolBinding::bound(std::string_view symbol) const {
  return std::find(symbols_.begin(), symbols_.end(), symbol) != symbols_.end();
}

Support SymbolBinding::covers(const Dim& dim) const {
  if (dim.is_constant()) return Support::yes();
  for (const std::string& name : symbols_of(dim)) {
    if (!bound(name)) {
      return Support::no(
          fmt::format("size '{}' cannot be told from the shapes of the inputs", name));
    }
  }
  return Support::yes();
}

Support SymbolBinding::covers(const Shape& shape) const {
  for (const Dim& dim : shape) {
    if (Support answer = covers(dim); !answer) return answer;
  }
  return Support::yes();
}

int64_t SymbolBinding::evaluate(const Dim& dim, std::span<const int64_t> values) const {
  if (dim.is_constant()) return dim.value();
  return dim.evaluate([&](std::string_view name) {
    const auto found = std::find(symbols_.begin(), symbols_.end(), name);
    if (found == symbols_.end()) {
      throw InternalError(fmt::format("symbol '{}' was never bound", name));
    }
    return values[static_cast<size_t>(found - symbols_.begin())];
  });
}

}  // namespace tenon::kernels
