#include "kernels/planning/symbol_binding.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/linear_dim.h"

namespace tenon::kernels {

std::vector<ProgramInput> inputs_of(const ir::Graph& graph) {
  std::vector<ProgramInput> inputs;
  for (const ir::ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    inputs.push_back({value.name, value.shape, value.dtype, value.elements});
  }
  return inputs;
}

// Extents first: a Run has them at hand, while elements may have to come from a GPU.
SymbolBinding::SymbolBinding(std::span<const ProgramInput> inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].shape) bind(Source::Kind::kExtent, i, *inputs[i].shape);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].elements) bind(Source::Kind::kElement, i, *inputs[i].elements);
  }
}

void SymbolBinding::bind(Source::Kind kind, size_t input, const std::vector<Dim>& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    const std::optional<LinearDim> form = linear_form(dims[i]);
    if (!form || bound(form->symbol)) continue;
    symbols_.push_back(form->symbol);
    sources_.push_back({kind, input, i, form->factor, form->summand});
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
