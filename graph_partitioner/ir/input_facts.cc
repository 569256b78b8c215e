#include "graph_partitioner/ir/input_facts.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/linear_dim.h"

namespace tenon::ir {
namespace {

// Names of models have no colon: theirs stay apart from these.
std::string name_for(std::string_view text) { return fmt::format(":{}", text); }

class Symbols {
 public:
  // Those that one of the sizes tells alone.
  void learn(const std::vector<Dim>& sizes) {
    for (const Dim& size : sizes) {
      if (const auto form = linear_form(size)) told_.insert(form->symbol);
    }
  }

  // Functions of symbols that are not told, where one of the sizes tells them alone: behind learn.
  void learn_functions(const std::vector<Dim>& sizes) {
    for (const Dim& size : sizes) {
      if (is_told(size)) continue;
      const Dim over_functions = size.substitute_functions([&](std::string_view function) {
        return is_told(Dim::parse(function)) ? std::nullopt
                                             : std::optional(Dim::symbol(name_for(function)));
      });
      if (const auto form = linear_form(over_functions)) told_.insert(form->symbol);
    }
  }

  void replace_untold(std::vector<Dim>& sizes) const {
    for (Dim& size : sizes) {
      if (!is_told(size)) size = over_told_functions(size);
      if (!is_told(size)) size = Dim::symbol(name_for(size.text()));
    }
  }

 private:
  bool is_told(const Dim& size) const {
    return std::ranges::all_of(symbols_of(size),
                               [&](const std::string& symbol) { return told_.contains(symbol); });
  }

  Dim over_told_functions(const Dim& size) const {
    const Dim result = size.substitute_functions([&](std::string_view function) {
      const std::string name = name_for(function);
      return told_.contains(name) ? std::optional(Dim::symbol(name)) : std::nullopt;
    });
    return is_told(result) ? result : size;
  }

  std::set<std::string> told_;
};

}  // namespace

std::vector<InputFacts> facts_of_inputs(const Graph& part, const Graph& whole) {
  std::vector<InputFacts> facts;
  Symbols symbols;
  for (const ValueId input : part.inputs()) {
    const Value& value = whole.value(whole.find(part.value(input).name));
    facts.push_back({value.name, value.shape, value.elements});
    if (value.shape) symbols.learn(*value.shape);
    if (value.elements) symbols.learn(*value.elements);
  }
  for (const InputFacts& input : facts) {
    if (input.shape) symbols.learn_functions(*input.shape);
    if (input.elements) symbols.learn_functions(*input.elements);
  }
  for (InputFacts& input : facts) {
    if (input.shape) symbols.replace_untold(*input.shape);
    if (input.elements) symbols.replace_untold(*input.elements);
  }
  return facts;
}

void tell_inputs(Graph& part, const std::vector<InputFacts>& facts) {
  std::map<std::string_view, const InputFacts*> by_name;
  for (const InputFacts& input : facts) by_name[input.name] = &input;
  for (const ValueId id : part.inputs()) {
    Value& input = part.value(id);
    const auto known = by_name.find(input.name);
    if (known == by_name.end()) {
      throw InternalError(
          fmt::format("nothing was told of the partition's input '{}'", input.name));
    }
    input.shape = known->second->shape;
    input.elements = known->second->elements;
  }
}

}  // namespace tenon::ir
