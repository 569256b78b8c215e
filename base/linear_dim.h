// A dim that one symbol decides: factor * symbol + summand.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/shape.h"

namespace tenon {

struct LinearDim {
  std::string symbol;
  int64_t factor = 1, summand = 0;
};

// nullopt where the dim has another form: it is a number, or has several symbols.
std::optional<LinearDim> linear_form(const Dim& dim);

// Its symbols, sorted, each once.
std::vector<std::string> symbols_of(const Dim& dim);

}  // namespace tenon
