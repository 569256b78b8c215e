// What a whole graph knows of the values that a part of it reads from outside.
//
// The runtime hands a claimed part back as a graph of its own, which has only the tensors: that a
// size is the batch times the tokens, or that four integers are a shape, was learnt in front of it.
// Whoever claimed the part passes these facts on, and each Run holds its inputs to them.
//
// A size stays an expression where the part's inputs tell all symbols of it. Where they tell a
// function of a symbol alone, that one becomes a symbol: behind an image of floordiv(height,14)
// rows, rows times columns are still that. Elsewhere the whole size becomes a symbol of its own,
// one for equal sizes: a part that reads only [batch*seq,64] does not ask which of it is the batch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::ir {

struct InputFacts {
  std::string name;
  std::optional<Shape> shape;
  std::optional<std::vector<Dim>> elements;
};

// Of the inputs of `part`, by what `whole` knows of the values of these names.
std::vector<InputFacts> facts_of_inputs(const Graph& part, const Graph& whole);

// Throws InternalError where an input of `part` is none of them.
void tell_inputs(Graph& part, const std::vector<InputFacts>& facts);

}  // namespace tenon::ir
