#include "graph_partitioner/tiling/index_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/tiling/coordinates.h"

namespace tenon::tiling {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::Node;
using ir::NodeId;
using ir::PrimitiveClass;
using ir::ValueId;

// An analysis stops at the first rule that the body breaks.
struct Illegal {
  std::string reason;
};

class Analysis {
 public:
  explicit Analysis(const Graph& body) : body_(body) {}

  LoopTiling run() {
    split_nodes();
    find_domain();
    check_reductions();
    make_stores();
    for (const ValueId load : loads_) {
      auto access = access_of(body_, load, tiling_.domain);
      if (!access.support) throw Illegal{access.support.reason};
      tiling_.accesses.push_back(std::move(access.access));
      tiling_.fits.insert(tiling_.fits.end(), access.fits.begin(), access.fits.end());
    }
    return std::move(tiling_);
  }

 private:
  // True for inputs, constants and what movement ops make of them.
  bool is_load(ValueId id) const {
    const Node* producer = body_.producer(id);
    return producer == nullptr || moved_.contains(id);
  }

  const Shape& shape_of(ValueId id) const {
    const auto& value = body_.value(id);
    if (!value.shape) throw Illegal{fmt::format("the shape of {} is unknown", value.name)};
    return *value.shape;
  }

  void split_nodes() {
    for (const NodeId id : body_.order()) {
      const Node& node = body_.node(id);
      const ir::Primitive* primitive = ir::find_primitive(node.op);
      if (primitive == nullptr) throw Illegal{fmt::format("{} is no primitive", node.op)};
      if (primitive->kind == PrimitiveClass::kMovement) {
        if (!is_load(node.input(0))) {
          throw Illegal{fmt::format("{} moves a computed value", node.op)};
        }
        moved_.insert(node.output(0));
        tiling_.movement.push_back(id);
        continue;
      }
      tiling_.region.push_back(id);
      for (const ValueId operand : node.inputs) add_load(operand);
    }
    for (const ValueId output : body_.outputs()) add_load(output);
  }

  void add_load(ValueId id) {
    if (id == kNoValue || !is_load(id)) return;
    if (std::find(loads_.begin(), loads_.end(), id) == loads_.end()) loads_.push_back(id);
  }

  void widen_domain(ValueId id) {
    auto wider = broadcast_shapes(tiling_.domain, shape_of(id));
    if (!wider) {
      throw Illegal{fmt::format("{} {} does not broadcast with {}", body_.value(id).name,
                                text(shape_of(id)), text(tiling_.domain))};
    }
    tiling_.domain = std::move(*wider);
  }

  // Every value flows into an output or a reduction, and there has the size that its operands
  // broadcast to. Operands do not count: a shape known better than theirs is kept.
  void find_domain() {
    for (const ValueId output : body_.outputs()) widen_domain(output);
    for (const NodeId id : tiling_.region) {
      const Node& node = body_.node(id);
      if (is_reduction(node)) widen_domain(node.input(0));
    }
  }

  static bool is_reduction(const Node& node) {
    return ir::is_primitive(node.op, PrimitiveClass::kReduction);
  }

  std::vector<int64_t> axes_of(const Node& node) const {
    if (node.is("ArgMax") || node.is("ArgMin")) return {node.integer("axis", 0)};
    return node.integers("axes");
  }

  void check_reductions() {
    bool first = true;
    for (const NodeId id : tiling_.region) {
      const Node& node = body_.node(id);
      if (node.is("tenon::Position")) check_position(node);
      if (!is_reduction(node)) continue;
      std::vector<int> axes = reduced_domain_axes(node);
      if (first) tiling_.reduced_axes = axes;
      if (axes != tiling_.reduced_axes) {
        throw Illegal{fmt::format("{} reduces other axes than the reduction before it", node.op)};
      }
      first = false;
    }
  }

  std::vector<int> reduced_domain_axes(const Node& node) const {
    const Shape& shape = shape_of(node.input(0));
    if (node.integer("keepdims", 1) != 1) throw Illegal{node.op + " has keepdims=0"};
    std::vector<int> axes;
    for (const int64_t axis : axes_of(node)) {
      if (axis < 0 || axis >= static_cast<int64_t>(shape.size())) {
        throw Illegal{fmt::format("{} reduces axis {} of a tensor {}", node.op, axis, text(shape))};
      }
      axes.push_back(domain_axis(tiling_, shape, static_cast<int>(axis)));
      if (!(shape[axis] == tiling_.domain[axes.back()])) {
        throw Illegal{fmt::format("{} reduces {} where the loop runs over {}", node.op,
                                  shape[axis].text(), tiling_.domain[axes.back()].text())};
      }
    }
    if (axes.empty()) throw Illegal{node.op + " names no axes"};
    std::sort(axes.begin(), axes.end());
    return axes;
  }

  void check_position(const Node& node) const {
    const Shape& shape = shape_of(node.output(0));
    const int64_t axis = node.integer("axis", 0);
    if (axis < 0 || axis >= static_cast<int64_t>(shape.size())) {
      throw Illegal{fmt::format("tenon::Position names axis {} of {}", axis, text(shape))};
    }
    const Dim& domain = tiling_.domain[domain_axis(tiling_, shape, static_cast<int>(axis))];
    if (!(shape[axis] == domain)) {
      throw Illegal{fmt::format("tenon::Position runs over {} where the loop runs over {}",
                                shape[axis].text(), domain.text())};
    }
  }

  bool is_reduced(size_t axis) const {
    return std::binary_search(tiling_.reduced_axes.begin(), tiling_.reduced_axes.end(),
                              static_cast<int>(axis));
  }

  void make_stores() {
    for (const ValueId output : body_.outputs()) {
      tiling_.stores.push_back({output, store_strides(output)});
    }
  }

  std::vector<Dim> store_strides(ValueId output) const {
    const Shape& domain = tiling_.domain;
    const Shape& own = shape_of(output);
    Shape shape(domain.size() - own.size(), Dim(1));
    shape.insert(shape.end(), own.begin(), own.end());
    bool full = true, reduced = true;
    for (size_t axis = 0; axis < domain.size(); ++axis) {
      const bool same = shape[axis] == domain[axis];
      full &= same;
      reduced &= is_reduced(axis) ? shape[axis].is(1) : same;
    }
    if (!full && !(reduced && !tiling_.reduced_axes.empty())) {
      throw Illegal{fmt::format("output {} {} is neither the whole of the domain {} nor reduced",
                                body_.value(output).name, text(own), text(domain))};
    }
    std::vector<Dim> strides = contiguous_strides(shape);
    for (size_t axis = 0; axis < domain.size(); ++axis) {
      if (shape[axis].is(1)) strides[axis] = 0;
    }
    return strides;
  }

  const Graph& body_;
  LoopTiling tiling_;
  std::set<ValueId> moved_;     // results of movement ops
  std::vector<ValueId> loads_;  // what the region and the outputs read, in order of first use
};

}  // namespace

LoopTiling analyze(const Graph& body) {
  LoopTiling refused;
  try {
    return Analysis(body).run();
  } catch (const Illegal& illegal) {
    refused.support = Support::no(illegal.reason);
  } catch (const UserError& error) {  // an attribute of the wrong type
    refused.support = Support::no(error.what());
  }
  return refused;
}

}  // namespace tenon::tiling
