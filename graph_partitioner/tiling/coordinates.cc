#include "graph_partitioner/tiling/coordinates.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/error.h"
#include "graph_partitioner/ir/primitives.h"

namespace tenon::tiling {
namespace {

using ir::Graph;
using ir::Node;
using ir::ValueId;

// The index along one axis of a tensor: floor((step * source + offset) / divisor).
struct Coordinate {
  enum class Source : uint8_t { kNone, kAxis, kGather } source = Source::kNone;
  int id = 0;  // domain axis, or position among the gathers met so far
  Dim step = 1;
  Dim offset;
  int64_t divisor = 1;
};
using Coordinates = std::vector<Coordinate>;

struct Unsupported {
  std::string reason;
};

// start + step * index, kept in the closed form.
void slide(Coordinate& index, const Dim& start, int64_t step) {
  if (index.divisor == 1) {
    index.step = index.step * step;
    index.offset = start + index.offset * step;
    return;
  }
  if (step != 1) throw Unsupported{"a strided Slice of a BlockExpand"};
  index.offset = index.offset + start * index.divisor;
}

class Walk {
 public:
  Walk(const Graph& body, const Shape& domain) : body_(body), domain_(domain) {}

  const std::vector<Fit>& fits() const { return fits_; }

  Access run(ValueId value) {
    Access access;
    access.value = value;
    Coordinates indices;
    for (size_t axis = 0; axis < domain_.size(); ++axis) {
      indices.push_back({Coordinate::Source::kAxis, static_cast<int>(axis), 1, 0, 1});
    }
    indices = broadcast_to(indices, domain_, shape_of(value));
    while (const Node* node = body_.producer(value)) {
      indices = step_through(*node, indices);
      value = node->input(0);
    }
    access.input = value;
    access.strides.assign(domain_.size(), Dim(0));
    finish(access, indices);
    access.guards = std::move(guards_);
    return access;
  }

 private:
  using Rule = Coordinates (Walk::*)(const Node&, const Coordinates&);

  const Shape& shape_of(ValueId id) const {
    const auto& value = body_.value(id);
    if (!value.shape) throw Unsupported{fmt::format("the shape of {} is unknown", value.name)};
    return *value.shape;
  }

  // A tensor of size `from` read where the index runs over `to`.
  Coordinate fit(Coordinate index, const Dim& from, const Dim& to) {
    if (from == to) return index;
    if (from.is(1)) return {};
    if (from.is_constant() && to.is_constant()) {
      throw Unsupported{
          fmt::format("size {} does not broadcast to the loop's {}", from.text(), to.text())};
    }
    fits_.push_back({from, to});
    if (from.is_constant()) return index;
    index.step = stride_unless_one(from, index.step);
    index.offset = stride_unless_one(from, index.offset);
    return index;
  }

  // Right-aligned, as ONNX broadcasts.
  Coordinates broadcast_to(const Coordinates& wide, const Shape& wide_shape, const Shape& shape) {
    if (shape.size() > wide.size()) throw Unsupported{"Expand to a lower rank"};
    const size_t missing = wide.size() - shape.size();
    Coordinates result;
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      result.push_back(fit(wide[axis + missing], shape[axis], wide_shape[axis + missing]));
    }
    return result;
  }

  Coordinates step_through(const Node& node, const Coordinates& indices) {
    static constexpr auto kRules = std::to_array<std::pair<std::string_view, Rule>>({
        {"Transpose", &Walk::transpose},
        {"tenon::Slice", &Walk::slice},
        {"Expand", &Walk::expand},
        {"tenon::BlockExpand", &Walk::block_expand},
        {"Gather", &Walk::gather},
        {ir::kPick, &Walk::pick},
        {"tenon::Pad", &Walk::pad},
        {"Reshape", &Walk::reshape},
    });
    for (const auto& [op, rule] : kRules) {
      if (node.is(op)) return (this->*rule)(node, indices);
    }
    throw Unsupported{node.op + " cannot be read through an index map"};
  }

  Coordinates transpose(const Node& node, const Coordinates& indices) {
    const std::vector<int64_t> perm = node.integers("perm");
    if (perm.size() != indices.size()) throw Unsupported{"Transpose without its perm"};
    Coordinates result(indices.size());
    for (size_t axis = 0; axis < perm.size(); ++axis) {
      if (perm[axis] < 0 || perm[axis] >= static_cast<int64_t>(perm.size())) {
        throw Unsupported{"Transpose with a perm out of range"};
      }
      result[perm[axis]] = indices[axis];
    }
    return result;
  }

  // One text of a Dim per axis.
  std::vector<Dim> dims_attribute(const Node& node, std::string_view name, size_t rank) const {
    const auto found = node.attributes.find(std::string(name));
    const auto* texts = found == node.attributes.end()
                            ? nullptr
                            : std::get_if<std::vector<std::string>>(&found->second);
    if (texts == nullptr || texts->size() != rank) {
      throw Unsupported{fmt::format("{} needs '{}' with one dim per axis", node.op, name)};
    }
    std::vector<Dim> dims;
    for (const std::string& text : *texts) dims.push_back(Dim::parse(text));
    return dims;
  }

  Coordinates slice(const Node& node, const Coordinates& indices) {
    const std::vector<Dim> starts = dims_attribute(node, "starts", indices.size());
    const std::vector<int64_t> steps = node.integers("steps");
    if (steps.size() != indices.size()) throw Unsupported{"tenon::Slice needs one step per axis"};
    Coordinates result = indices;
    for (size_t axis = 0; axis < result.size(); ++axis) {
      slide(result[axis], starts[axis], steps[axis]);
    }
    return result;
  }

  Coordinates expand(const Node& node, const Coordinates& indices) {
    return broadcast_to(indices, shape_of(node.output(0)), shape_of(node.input(0)));
  }

  Coordinates block_expand(const Node& node, const Coordinates& indices) {
    const int64_t axis = node.integer("axis", 0), block = node.integer("block", 1);
    if (axis < 0 || axis >= static_cast<int64_t>(indices.size()) || block < 1) {
      throw Unsupported{"tenon::BlockExpand with a bad axis or block"};
    }
    Coordinates result = indices;
    result[axis].divisor = checked_divisor(result[axis].divisor, block);
    return result;
  }

  static int64_t checked_divisor(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) throw Unsupported{"block sizes overflow"};
    return product;
  }

  Coordinates gather(const Node& node, const Coordinates& indices) {
    const Shape& data = shape_of(node.input(0));
    const Shape& index_shape = shape_of(node.input(1));
    const int64_t axis = node.integer("axis", 0);
    if (axis < 0 || axis >= static_cast<int64_t>(data.size()) ||
        indices.size() != data.size() - 1 + index_shape.size()) {
      throw Unsupported{"Gather with a bad axis or shape"};
    }
    const auto first = indices.begin() + axis;
    const auto last = first + static_cast<std::ptrdiff_t>(index_shape.size());
    Coordinates result(indices.begin(), first);
    result.push_back(add_gather(node, Coordinates(first, last), data[axis]));
    result.insert(result.end(), last, indices.end());
    return result;
  }

  Coordinates pick(const Node& node, const Coordinates& indices) {
    const Shape& data = shape_of(node.input(0));
    const Shape& result = shape_of(node.output(0));
    const int64_t axis = node.integer("axis", 0);
    if (axis < 0 || axis >= static_cast<int64_t>(data.size()) ||
        indices.size() != data.size() - 1) {
      throw Unsupported{"tenon::Pick with a bad axis or shape"};
    }
    Shape rest = data;
    rest.erase(rest.begin() + axis);
    const Coordinates own = broadcast_to(indices, result, shape_of(node.input(1)));
    const Coordinate picked = add_gather(node, own, data[axis]);
    Coordinates read = broadcast_to(indices, result, rest);
    read.insert(read.begin() + axis, picked);
    return read;
  }

  // `indices`: where the node's own indices are read.
  Coordinate add_gather(const Node& node, const Coordinates& indices, const Dim& bound) {
    const ValueId value = node.input(1);
    if (body_.producer(value) != nullptr) {
      throw Unsupported{"Gather indices are computed in the same loop"};
    }
    Access own;
    own.strides.assign(domain_.size(), Dim(0));
    own.input = value;
    for (const Coordinate& index : indices) {
      if (index.source == Coordinate::Source::kGather) {
        throw Unsupported{"Gather indices are themselves gathered"};
      }
    }
    finish(own, indices);
    GatherTerm term;
    term.indices = value;
    term.indices_offset = own.offset;
    term.indices_strides = own.strides;
    term.indices_blocks = own.blocks;
    term.bound = bound;
    term.from_end = node.integer("from_end", 1) != 0;
    gathers_.push_back(std::move(term));
    return {Coordinate::Source::kGather, static_cast<int>(gathers_.size()) - 1, 1, 0, 1};
  }

  Coordinates pad(const Node& node, const Coordinates& indices) {
    const Shape& inner = shape_of(node.input(0));
    const Shape& outer = shape_of(node.output(0));
    const std::vector<Dim> begins = dims_attribute(node, "pads_begin", indices.size());
    Guard guard;
    guard.fill = node.input(1);
    Coordinates result = indices;
    for (size_t axis = 0; axis < result.size(); ++axis) {
      Coordinate& index = result[axis];
      slide(index, Dim(0) - begins[axis], 1);
      if (begins[axis].is(0) && inner[axis] == outer[axis]) continue;
      if (index.source == Coordinate::Source::kGather) throw Unsupported{"Gather from a Pad"};
      // A constant index is a bound that does not move along any axis.
      const bool moves = index.source == Coordinate::Source::kAxis;
      if (!moves && domain_.empty()) throw Unsupported{"Pad read as a scalar"};
      guard.bounds.push_back({moves ? index.id : 0, moves ? index.step : Dim(0), index.offset,
                              inner[axis] * index.divisor});
    }
    if (!guard.bounds.empty()) guards_.push_back(std::move(guard));
    return result;
  }

  // Adds or drops axes of size 1; the others keep their order.
  Coordinates reshape(const Node& node, const Coordinates& indices) {
    const Shape& outer = shape_of(node.output(0));
    const Shape& inner = shape_of(node.input(0));
    Coordinates result;
    size_t next = 0;
    for (const Dim& dim : inner) {
      if (dim.is(1)) {
        result.push_back({});
        continue;
      }
      while (next < outer.size() && outer[next].is(1)) ++next;
      if (next == outer.size() || !(outer[next] == dim)) {
        throw Unsupported{fmt::format("Reshape from {} to {} moves elements between axes",
                                      text(inner), text(outer))};
      }
      result.push_back(indices[next++]);
    }
    while (next < outer.size() && outer[next].is(1)) ++next;
    if (next != outer.size()) {
      throw Unsupported{fmt::format("Reshape from {} to {} moves elements between axes",
                                    text(inner), text(outer))};
    }
    return result;
  }

  // From indices per axis of the contiguous tensor `access.input` to one element number.
  void finish(Access& access, const Coordinates& indices) const {
    const Shape strides = contiguous_strides(shape_of(access.input));
    for (size_t axis = 0; axis < indices.size(); ++axis) {
      const Coordinate& index = indices[axis];
      const Dim& stride = strides[axis];
      switch (index.source) {
        case Coordinate::Source::kNone:
          access.offset = access.offset + stride * floor_div(index.offset, Dim(index.divisor));
          break;
        case Coordinate::Source::kAxis:
          if (index.divisor == 1) {
            access.offset = access.offset + stride * index.offset;
            access.strides[index.id] = access.strides[index.id] + stride * index.step;
          } else {
            access.blocks.push_back({index.id, index.step, index.offset, index.divisor, stride});
          }
          break;
        case Coordinate::Source::kGather: {
          GatherTerm term = gathers_.at(index.id);
          term.step = index.step;
          term.offset = index.offset;
          term.divisor = index.divisor;
          term.stride = stride;
          access.gathers.push_back(std::move(term));
          break;
        }
      }
    }
  }

  const Graph& body_;
  const Shape& domain_;
  std::vector<GatherTerm> gathers_;
  std::vector<Guard> guards_;
  std::vector<Fit> fits_;
};

}  // namespace

AccessResult access_of(const Graph& body, ValueId value, const Shape& domain) {
  try {
    Walk walk(body, domain);
    Access access = walk.run(value);
    return {Support::yes(), std::move(access), walk.fits()};
  } catch (const Unsupported& unsupported) {
    return {Support::no(unsupported.reason), {}, {}};
  }
}

}  // namespace tenon::tiling
