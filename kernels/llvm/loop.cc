#include "kernels/llvm/loop.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/convert.h"
#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "kernels/llvm/loop/emitter.h"
#include "kernels/llvm/loop/problem.h"
#include "kernels/llvm/loop/split_reduction.h"
#include "kernels/llvm/pointwise.h"
#include "kernels/planning/symbol_binding.h"

namespace tenon::kernels {
namespace {

// The body with scalars that the graph knows filled in, so that they end up in the code.
std::shared_ptr<const ir::Graph> with_known_scalars(const ir::Graph& graph, const ir::Node& node) {
  auto body = std::make_shared<ir::Graph>(*node.body);
  for (size_t i = 0; i < body->inputs().size(); ++i) {
    if (node.input(i) == ir::kNoValue) continue;
    const ir::Value& given = graph.value(node.input(i));
    if (!given.is_constant() || given.constant->elements() != 1) continue;
    ir::Value& inner = body->value(body->inputs()[i]);
    inner.constant = given.constant;
    inner.overridable = false;
  }
  return body;
}

class ProblemMaker {
 public:
  ProblemMaker(const ir::Graph& graph, const ir::Node& node, Lowered& lowered)
      : graph_(graph), node_(node), lowered_(lowered) {}

  // Throws UserError with the reason where the body is no legal loop.
  LoopProblem make() {
    problem_.name = "loop";
    problem_.body = with_known_scalars(graph_, node_);
    tiling::LoopTiling tiling = tiling::analyze(*problem_.body);
    if (!tiling.support) throw UserError(tiling.support.reason);
    problem_.domain = tiling.domain;
    problem_.reduced_axes = tiling.reduced_axes;
    problem_.region = tiling.region;
    problem_.loads = tiling.accesses;
    for (const tiling::Fit& fit : tiling.fits) {
      lowered_.sizes.push_back({fit.size, ir::Relation::kStretches, fit.over});
    }
    add_stores(tiling);
    add_positions(tiling);
    for (const tiling::Access& load : problem_.loads) add_buffers(load);
    return merge_axes(std::move(problem_));
  }

 private:
  void add_stores(const tiling::LoopTiling& tiling) {
    for (size_t i = 0; i < tiling.stores.size(); ++i) {
      LoopStore store;
      store.value = tiling.stores[i].value;
      store.buffer = BufferArgument::value(node_.output(i));
      store.place.strides = tiling.stores[i].strides;
      if (node_.output(i) != ir::kNoValue) problem_.stores.push_back(std::move(store));
    }
  }

  void add_positions(const tiling::LoopTiling& tiling) {
    for (ir::NodeId id : problem_.region) {
      const ir::Node& inner = problem_.body->node(id);
      if (!inner.is("tenon::Position")) continue;
      const Shape& shape = *problem_.body->value(inner.output(0)).shape;
      problem_.positions[id] =
          tiling::domain_axis(tiling, shape, static_cast<int>(inner.integer("axis", 0)));
    }
  }

  void add_buffers(const tiling::Access& load) {
    if (!problem_.is_baked(load.input)) add_buffer(load.input);
    for (const tiling::GatherTerm& term : load.gathers) {
      add_buffer(term.indices);
      check_indices(term);
    }
    for (const tiling::Guard& guard : load.guards) {
      if (!problem_.is_baked(guard.fill)) add_buffer(guard.fill);
    }
  }

  void add_buffer(ir::ValueId value) {
    if (problem_.buffers.contains(value)) return;
    const auto& inputs = problem_.body->inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] != value) continue;
      problem_.buffers[value] = BufferArgument::value(node_.input(i));
      return;
    }
    // A constant of the body alone.
    if (!problem_.body->value(value).constant) {
      throw UserError("Pad with a fill that the same loop computes");
    }
    const ir::Tensor& tensor = *problem_.body->value(value).constant;
    PackedConstant constant{aligned_bytes(tensor.bytes), tensor.bytes};
    if (tensor.bytes > 0) std::memcpy(constant.data.get(), tensor.data, tensor.bytes);
    problem_.buffers[value] = BufferArgument::packed(static_cast<int32_t>(lowered_.packed.size()));
    lowered_.packed.push_back(std::move(constant));
  }

  void check_indices(const tiling::GatherTerm& term) {
    const BufferArgument& argument = problem_.buffers.at(term.indices);
    if (argument.kind != BufferArgument::Kind::kValue) {
      throw UserError("Gather by a constant of the loop's own");
    }
    const DType dtype = graph_.value(argument.id).dtype;
    if (dtype != DType::kI32 && dtype != DType::kI64) {
      throw UserError(fmt::format("Gather by indices of type {}", name(dtype)));
    }
    if (graph_.value(argument.id).is_constant()) return require_rows(argument.id, term);
    for (const IndexCheck& check : problem_.checks) {
      if (check.value == argument.id && check.bound == term.bound &&
          check.from_end == term.from_end) {
        return;
      }
    }
    problem_.checks.push_back({.value = argument.id,
                               .bound = term.bound,
                               .from_end = term.from_end,
                               .node = reader_of(term.indices)});
  }

  static bool is_movement(const ir::Node& node) {
    const ir::Primitive* primitive = ir::find_primitive(node.op);
    return primitive && primitive->kind == ir::PrimitiveClass::kMovement;
  }

  // The body's node that gathers by these indices, perhaps through views of them.
  std::string reader_of(ir::ValueId indices) const {
    for (const ir::NodeId id : problem_.body->consumers(indices)) {
      const ir::Node& reader = problem_.body->node(id);
      if (ir::reads_indices(reader.op)) {
        if (reader.input(1) == indices) return reader.name;
      } else if (is_movement(reader)) {
        if (std::string found = reader_of(reader.output(0)); !found.empty()) return found;
      }
    }
    return "";
  }

  // Indices that are known fit as soon as sizes do.
  void require_rows(ir::ValueId indices, const tiling::GatherTerm& term) {
    const ir::Tensor& tensor = *graph_.value(indices).constant;
    int64_t last = -1, from_end = 0;  // the farthest, counted from each end
    for (int64_t i = 0; i < tensor.elements(); ++i) {
      const int64_t index = load_integer(tensor.dtype, tensor.data, i);
      // Indices that no size makes right would overflow below.
      if (index == std::numeric_limits<int64_t>::max() ||
          index == std::numeric_limits<int64_t>::min() || (index < 0 && !term.from_end)) {
        throw UserError(fmt::format("Gather by the index {}", index));
      }
      last = std::max(last, index);
      from_end = std::max(from_end, -index);
    }
    lowered_.sizes.push_back(
        {Dim(std::max(last + 1, from_end)), ir::Relation::kAtMost, term.bound});
    if (from_end == 0) problem_.known_indices.insert(term.indices);
  }

  const ir::Graph& graph_;
  const ir::Node& node_;
  Lowered& lowered_;
  LoopProblem problem_;
};

// Sizes may hide in the body (DimValue, Slice, …) where the node's own shapes do not show them.
Support has_known_sizes(const ir::Graph& graph, const LoopProblem& problem) {
  const SymbolBinding binding(graph);
  if (Support answer = binding.covers(problem.domain); !answer) return answer;
  for (const tiling::Access& load : problem.loads) {
    if (Support answer = binding.covers(load.strides); !answer) return answer;
    if (Support answer = binding.covers(load.offset); !answer) return answer;
  }
  for (ir::NodeId id : problem.region) {
    const ir::Node& node = problem.body->node(id);
    if (!node.is("tenon::DimValue")) continue;
    if (Support answer = binding.covers(Dim::parse(node.text("dim", "0"))); !answer) return answer;
  }
  return Support::yes();
}

// Along a kept axis there is no element, and no index is to be checked either: no launch. Strides
// that are products with 0 would look like those of broadcasts.
bool does_nothing(const LoopProblem& problem) {
  for (size_t axis = 0; axis < problem.domain.size(); ++axis) {
    if (problem.domain[axis].is(0) && !problem.is_reduced(static_cast<int>(axis))) {
      return problem.checks.empty();
    }
  }
  return false;
}

Planned plan_loop(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  try {
    Lowered constants;
    const LoopProblem problem = describe_loop(graph, node, constants);
    return plan_described_loop(graph, problem, std::move(constants), settings);
  } catch (const UserError& error) {
    return Planned::no(error.what());
  }
}

}  // namespace

LoopProblem describe_loop(const ir::Graph& graph, const ir::Node& node, Lowered& lowered) {
  return ProblemMaker(graph, node, lowered).make();
}

Planned plan_described_loop(const ir::Graph& graph, const LoopProblem& problem, Lowered constants,
                            const Settings& settings) {
  if (Support answer = has_known_sizes(graph, problem); !answer) return answer;
  if (Support answer = supports_problem(problem, settings); !answer) return answer;
  return Plan::of({Skeleton::kLoop}, [constants = std::move(constants), problem, &settings] {
    Lowered made = constants;
    for (const LoopProblem& part : split_reduction(problem, made.scratch)) {
      if (!does_nothing(part)) made.launches.push_back(emit_loop(part, settings));
    }
    return made;
  });
}

std::span<const Candidate> loop_candidates() {
  static constexpr std::array<Candidate, 1> table = {{{"one_kernel", plan_loop}}};
  return table;
}

}  // namespace tenon::kernels
