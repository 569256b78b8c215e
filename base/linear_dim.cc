#include "base/linear_dim.h"

#include <algorithm>

#include "base/error.h"

namespace tenon {

std::vector<std::string> symbols_of(const Dim& dim) {
  std::vector<std::string> names;
  dim.collect_symbols(names);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

namespace {

std::optional<LinearDim> with_symbol(const Dim& dim, const std::string& name) {
  const Dim symbol = Dim::symbol(name);
  if (dim == symbol) return LinearDim{name};
  const auto at = [&](int64_t value) {
    return dim.substitute([&](std::string_view) -> std::optional<Dim> { return Dim(value); });
  };
  const Dim at_zero = at(0);
  if (!at_zero.is_constant()) return std::nullopt;
  const Dim slope = at(1) - at_zero;
  if (!slope.is_constant() || slope.is(0)) return std::nullopt;
  if (!(dim == slope * symbol + at_zero)) return std::nullopt;
  return LinearDim{name, slope.value(), at_zero.value()};
}

}  // namespace

std::optional<LinearDim> linear_form(const Dim& dim) {
  const std::vector<std::string> symbols = symbols_of(dim);
  if (symbols.size() != 1) return std::nullopt;
  try {
    return with_symbol(dim, symbols.front());
  } catch (const UserError&) {
    return std::nullopt;  // where the symbol is 0 or 1, sizes in it do not fit each other
  }
}

}  // namespace tenon
