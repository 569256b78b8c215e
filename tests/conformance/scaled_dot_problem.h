// Block-scaled dots of every form, with random operands.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/tensor.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {

// How the weight of a dot is stored and scaled.
struct DotForm {
  std::string_view name;
  DType element;
  DType scale = DType::kUndefined;  // kUndefined: none
  int64_t block = 0;                // 0: one scale for all of K
  bool per_channel = true;
  DType zero = DType::kUndefined;
  bool k_last = true;       // b is [N, K]
  bool as_bytes = false;    // elements, scale codes and zero points hide in uint8
  int64_t rows = 1;         // that share their scales
  bool whole_zero = false;  // zero points that are floats are integers
};

std::span<const DotForm> dot_forms();

// How the rows of a dot are stored and scaled, where they are codes.
struct LeftForm {
  std::string_view name;
  DType codes;
  DType scale = DType::kF32;
  int64_t block = 0;     // 0: one scale, which is constant, for all of it
  bool per_row = false;  // or one for each row, which a Run brings like those of blocks
  DType zero = DType::kUndefined;
};

std::span<const LeftForm> left_forms();

struct DotSize {
  int64_t n, k;
};

enum class DotEnd { kPlain, kBias, kAlpha, kBody };

struct DotProblem {
  DotForm form;
  DType activation = DType::kF32;  // of what the model multiplies, and of the result
  DotSize size{};
  DotEnd end = DotEnd::kPlain;
  bool constant_weight = true;
  std::optional<LeftForm> left = std::nullopt;  // codes instead of numbers
  std::optional<DType> rows = std::nullopt;     // of another type than what is multiplied
};

// The dot as a graph of one node; a is [m, k], with m open unless `rows` says how many.
ir::Graph build_dot(const DotProblem& problem, std::mt19937& random,
                    std::optional<int64_t> rows = std::nullopt);
// The parts of it, for graphs of several dots: rows a [m, k], and a dot of them; gives its result.
ir::ValueId add_rows(ir::Graph& graph, DType type, int64_t k,
                     std::optional<int64_t> rows = std::nullopt);
ir::ValueId add_dot(ir::Graph& graph, ir::ValueId a, const DotProblem& problem,
                    std::mt19937& random);
// Inputs of such a graph for m rows.
std::vector<reference::ReferenceTensor> dot_inputs(const ir::Graph& graph, int64_t m,
                                                   std::mt19937& random);

// sum |a||b| of every element of the result: what the error of a dot is measured by. `number`: of
// the dot in the graph.
reference::ReferenceTensor magnitudes(const ir::Graph& graph,
                                      const std::vector<reference::ReferenceTensor>& inputs,
                                      size_t number = 0);
Tolerance dot_tolerance(const DotProblem& problem, const reference::ReferenceTensor& sums);
std::string describe(const DotProblem& problem);

// Random elements of a type that are neither NaN nor infinite, of moderate size; of f32 none is
// half way between two numbers of tf32.
reference::ReferenceTensor random_tensor(DType dtype, std::vector<int64_t> dims,
                                         std::mt19937& random, double spread = 1);

// How far a sum may be from the reference, by the size of its terms. Integers times their scale are
// rounded to the type of the activations; the reference is not.
double error_of(const DotProblem& problem, double magnitude);

// What products mean that round both operands to tf32: the same graph with rounded weights, and its
// inputs with rounded rows.
ir::Graph in_tf32(ir::Graph graph);
std::vector<reference::ReferenceTensor> in_tf32(std::vector<reference::ReferenceTensor> inputs);

// An operation whose only result has the shape of its first operand; gives that result.
ir::ValueId add_node(ir::Graph& graph, const char* op, int version, std::vector<ir::ValueId> inputs,
                     DType dtype);

}  // namespace tenon::kernels
