#include "graph_partitioner/passes/complete_shapes.h"

#include <fmt/format.h>

namespace tenon {
namespace {

using ir::kNoValue;
using ir::Node;
using ir::ValueId;

struct Heads {
  int64_t q = 0, kv = 0, size = 0;
};

class Completion {
 public:
  Completion(ir::Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  void group_query() {
    const Shape* query = shape_of(0);
    if (!query || query->size() != 3 || !read_heads(query->back())) return;
    const Dim batch = (*query)[0], tokens = (*query)[1];
    for (const size_t past : {3, 4}) {
      set(past, {batch, heads_.kv, any(past, 2), cache_width(past)});
    }
    set(5, {batch});
    set(9, {batch, tokens});
    set(11, {heads_.q});
    set_scale(12, "k_quant_type", {1, heads_.kv, 1, heads_.size});
    set_scale(13, "v_quant_type", {1, heads_.kv, 1, heads_.size});
    for (const size_t norm : {14, 15}) set(norm, {heads_.size});
  }

  void paged() {
    const Shape* query = shape_of(0);
    if (!query || query->size() != 2 || !read_heads(query->back())) return;
    set(11, {heads_.q});
    for (const size_t norm : {12, 13}) set(norm, {heads_.size});
    set_scale(14, "k_quant_type", {heads_.kv, 1, heads_.size});
    set_scale(15, "v_quant_type", {heads_.kv, 1, heads_.size});
  }

 private:
  const Shape* shape_of(size_t input) const {
    if (node_.input(input) == kNoValue) return nullptr;
    const auto& shape = graph_.value(node_.input(input)).shape;
    return shape ? &*shape : nullptr;
  }

  // A query without keys beside it holds them too.
  bool read_heads(const Dim& width) {
    heads_.q = node_.integer("num_heads", 0);
    heads_.kv = node_.integer("kv_num_heads", 0);
    if (heads_.q <= 0 || heads_.kv <= 0 || !width.is_constant()) return false;
    const bool packed = node_.input(1) == kNoValue;
    const int64_t count = packed ? heads_.q + 2 * heads_.kv : heads_.q;
    heads_.size = width.value() / count;
    return heads_.size > 0 && width.is(heads_.size * count);
  }

  // Codes of 4 bits are two in a byte.
  Dim cache_width(size_t past) const {
    if (node_.input(past) == kNoValue) return 0;
    const bool bytes = graph_.value(node_.input(past)).dtype == DType::kU8;
    return bytes && node_.integer("kv_cache_bit_width", 0) == 4 ? heads_.size / 2 : heads_.size;
  }

  Dim any(size_t input, size_t axis) const {
    if (node_.input(input) == kNoValue) return 0;
    return Dim::symbol(fmt::format("input{}_{}", node_.input(input), axis));
  }

  void set_scale(size_t input, const char* attribute, const Shape& per_channel) {
    const std::string kind = node_.text(attribute, "NONE");
    if (kind == "PER_TENSOR") set(input, {1});
    if (kind == "PER_CHANNEL") set(input, per_channel);
  }

  void set(size_t input, const Shape& shape) {
    const ValueId id = node_.input(input);
    if (id != kNoValue && !graph_.value(id).shape) graph_.value(id).shape = shape;
  }

  ir::Graph& graph_;
  const Node& node_;
  Heads heads_;
};

}  // namespace

void complete_shapes(ir::Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.is("com.microsoft::GroupQueryAttention")) Completion(graph, node).group_query();
    if (node.is("com.microsoft::PagedAttention")) Completion(graph, node).paged();
  }
}

}  // namespace tenon
