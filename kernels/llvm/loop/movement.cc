#include "kernels/llvm/loop/movement.h"

namespace tenon::kernels {

Movement::Movement(std::string name, const ir::Graph& graph, Shape domain) : graph_(graph) {
  problem_.name = std::move(name);
  problem_.domain = std::move(domain);
}

ir::ValueId Movement::read(ir::ValueId value) {
  ir::Value inner;
  inner.name = graph_.value(value).name;
  inner.dtype = graph_.value(value).dtype;
  const ir::ValueId id = body_.add_input(std::move(inner));
  problem_.buffers[id] = BufferArgument::value(value);
  return id;
}

ir::ValueId Movement::apply(std::string op, std::vector<ir::ValueId> operands) {
  ir::Value result;
  result.name = "result";
  result.dtype = body_.value(operands.front()).dtype;
  const ir::ValueId id = body_.add_value(std::move(result));
  ir::Node node;
  node.op = std::move(op);
  node.inputs = std::move(operands);
  node.outputs = {id};
  problem_.region.push_back(body_.add_node(std::move(node)));
  return id;
}

void Movement::load(ir::ValueId value, tiling::Access place) {
  place.value = place.input = value;
  problem_.loads.push_back(std::move(place));
}

void Movement::store(ir::ValueId value, ir::ValueId output, tiling::Access place) {
  problem_.stores.push_back({value, BufferArgument::value(output), std::move(place)});
}

tiling::GatherTerm Movement::gather_term(ir::ValueId indices, Dim offset, std::vector<Dim> strides,
                                         Dim bound, Dim stride) const {
  tiling::GatherTerm term;
  term.indices = indices;
  term.indices_offset = std::move(offset);
  term.indices_strides = std::move(strides);
  term.bound = std::move(bound);
  term.stride = std::move(stride);
  return term;
}

LoopProblem Movement::finish() {
  problem_.body = std::make_shared<const ir::Graph>(std::move(body_));
  return merge_axes(std::move(problem_));
}

tiling::Access Movement::contiguous(const Shape& shape) const {
  tiling::Access access;
  access.strides.assign(problem_.domain.size() - shape.size(), Dim(0));
  for (const Dim& stride : contiguous_strides(shape)) access.strides.push_back(stride);
  return access;
}

LoopProblem copy_problem(const ir::Graph& graph, ir::ValueId from, ir::ValueId to) {
  const Shape flat{element_count(*graph.value(from).shape)};
  Movement copy("copy", graph, flat);
  const ir::ValueId value = copy.read(from);
  copy.load(value, copy.contiguous(flat));
  copy.store(value, to, copy.contiguous(flat));
  return copy.finish();
}

}  // namespace tenon::kernels
