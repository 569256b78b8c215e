// Layers of decoders as passes leave them for the sharding pass: products and attentions matched,
// everything else primitives.
#pragma once

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/graph.h"

namespace tenon::testing {

enum class WeightFormat : uint8_t { kPlain, kPlainRows, kNvfp4, kMxfp8, kInt4, kInt4Bits };

struct DecoderSizes {
  int64_t hidden = 64, q_heads = 4, kv_heads = 2, head_size = 16, feed_forward = 128;
  int64_t vocabulary = 96;  // 0: neither table nor last product
};

struct DecoderForm {
  WeightFormat weights = WeightFormat::kPlain;
  bool packed_qkv = false;
  bool bias = false;  // of q, k, v and o: added behind products, within the last one
  bool sinks = false;
  bool head_norms = false;  // spelled out in front of attention
  bool symbolic_heads = true;
  bool packed_gate = false;
  bool coded_caches = false;  // i8, a scale for each element of each head
  bool head_mask = false;     // one for each head
  bool has_bytes = true;      // false: weights stand for bytes that nobody reads
  Dim batch = Dim::symbol("b"), tokens = Dim::symbol("s");
};

class DecoderGraph {
 public:
  DecoderGraph(const DecoderSizes& sizes, const DecoderForm& form, unsigned seed = 1)
      : sizes_(sizes), form_(form), random_(seed) {}

  ir::Graph decoder() {
    ir::ValueId x = sizes_.vocabulary > 0 ? embed() : input("x", kType, rows(sizes_.hidden));
    x = residual(x, attention(norm(x, "input_norm")));
    x = residual(x, mlp(norm(x, "post_norm")));
    if (sizes_.vocabulary == 0) {
      graph.add_output(x);
    } else {
      graph.add_output(dot(norm(x, "last_norm"), "lm_head", sizes_.vocabulary, sizes_.hidden));
    }
    graph.add_output(graph.find("present_k"));
    graph.add_output(graph.find("present_v"));
    return std::move(graph);
  }

  ir::Graph gated_mlp() {
    const ir::ValueId x = input("x", kType, rows(sizes_.hidden));
    graph.add_output(residual(x, mlp(x)));
    return std::move(graph);
  }

  ir::Graph last_product() {
    const ir::ValueId x = input("x", kType, rows(sizes_.hidden));
    graph.add_output(dot(x, "lm_head", sizes_.vocabulary, sizes_.hidden));
    return std::move(graph);
  }

  // Building blocks.
  ir::Graph graph;
  static constexpr DType kType = DType::kF32;

  Shape rows(int64_t width) const { return {form_.batch, form_.tokens, width}; }

  ir::ValueId input(const std::string& name, DType dtype, Shape shape) {
    return graph.add_input(value(name, dtype, std::move(shape)));
  }

  ir::ValueId op(const std::string& op, std::vector<ir::ValueId> inputs, const std::string& name,
                 Shape shape, std::map<std::string, ir::Attribute> attributes = {},
                 DType dtype = kType) {
    ir::Node node;
    node.op = op;
    node.name = name;
    node.inputs = std::move(inputs);
    node.attributes = std::move(attributes);
    node.outputs = {graph.add_value(value(name, dtype, std::move(shape)))};
    const ir::ValueId result = node.outputs[0];
    graph.add_node(std::move(node));
    return result;
  }

  ir::ValueId constant(const std::string& name, DType dtype, std::vector<int64_t> dims,
                       double low = -1, double high = 1) {
    int64_t count = 1;
    for (const int64_t dim : dims) count *= dim;
    if (!form_.has_bytes) {
      auto tensor = std::make_shared<ir::Tensor>();
      tensor->dtype = dtype;
      tensor->dims = std::move(dims);
      tensor->bytes = storage_bytes(dtype, count);
      tensor->stands_for = "00";
      return graph.add_constant(name, tensor);
    }
    std::uniform_real_distribution<double> numbers(low, high);
    std::vector<double> values(static_cast<size_t>(count));
    for (double& number : values) number = numbers(random_);
    return graph.add_constant(name, ir::Tensor::of(dtype, std::move(dims), values));
  }

  ir::ValueId dot(ir::ValueId x, const std::string& name, int64_t n, int64_t k,
                  ir::ValueId bias = ir::kNoValue) {
    ir::ScaledDot dot;
    dot.a = x;
    dot.bias = bias;
    dot.result = kType;
    write_weight(dot, name, n, k);
    ir::Node node;
    dot.write_to(node);
    Shape shape = *graph.value(x).shape;
    shape.back() = n;
    return op(node.op, node.inputs, name, shape, node.attributes);
  }

  ir::ValueId mlp(ir::ValueId x) {
    const int64_t inner = sizes_.feed_forward;
    ir::ValueId gate = ir::kNoValue, up = ir::kNoValue;
    if (form_.packed_gate) {
      const ir::ValueId both = dot(x, "gate_up", 2 * inner, sizes_.hidden);
      gate = slice(both, "gate", 0, inner);
      up = slice(both, "up", inner, inner);
    } else {
      gate = dot(x, "gate", inner, sizes_.hidden);
      up = dot(x, "up", inner, sizes_.hidden);
    }
    const Shape wide = rows(inner);
    const ir::ValueId active = op("Tanh", {gate}, "active", wide);
    const ir::ValueId scaled = op("Mul", {active, gate}, "scaled", wide);
    const ir::ValueId gated = op("Mul", {scaled, up}, "gated", wide);
    const ir::ValueId bias =
        form_.bias ? constant("down.bias", kType, {sizes_.hidden}) : ir::kNoValue;
    return dot(gated, "down", sizes_.hidden, inner, bias);
  }

  ir::ValueId attention(ir::ValueId x) {
    const int64_t d = sizes_.head_size, q = sizes_.q_heads, kv = sizes_.kv_heads;
    std::vector<ir::ValueId> heads;
    if (form_.packed_qkv) {
      const ir::ValueId all = view(biased_dot(x, "qkv", (q + 2 * kv) * d), "qkv.heads", q + 2 * kv);
      heads = {slice(all, "q.heads", 0, q), slice(all, "k.heads", q, kv),
               slice(all, "v.heads", q + kv, kv)};
    } else {
      heads = {view(biased_dot(x, "q", q * d), "q.heads", q),
               view(biased_dot(x, "k", kv * d), "k.heads", kv),
               view(biased_dot(x, "v", kv * d), "v.heads", kv)};
    }
    if (form_.head_norms) {
      heads[0] = norm(heads[0], "q_norm");
      heads[1] = norm(heads[1], "k_norm");
    }
    return dot(attend(heads), "o", sizes_.hidden, q * d,
               form_.bias ? constant("o.bias", kType, {sizes_.hidden}) : ir::kNoValue);
  }

 private:
  static ir::Value value(const std::string& name, DType dtype, Shape shape) {
    ir::Value made;
    made.name = name;
    made.dtype = dtype;
    made.shape = std::move(shape);
    return made;
  }

  ir::ValueId embed() {
    const ir::ValueId ids = input("ids", DType::kI64, {form_.batch, form_.tokens});
    const ir::ValueId table = constant("table", kType, {sizes_.vocabulary, sizes_.hidden});
    return op("Gather", {table, ids}, "embed", rows(sizes_.hidden), {{"axis", int64_t{0}}});
  }

  ir::ValueId residual(ir::ValueId x, ir::ValueId y) {
    return op("Add", {x, y}, graph.value(y).name + ".residual", *graph.value(x).shape);
  }

  ir::ValueId norm(ir::ValueId x, const std::string& name) {
    const Shape shape = *graph.value(x).shape;
    Shape one = shape;
    one.back() = 1;
    const std::vector<int64_t> axes{static_cast<int64_t>(shape.size()) - 1};
    const ir::ValueId squares = op("Mul", {x, x}, name + ".squares", shape);
    const ir::ValueId mean = op("ReduceMean", {squares}, name + ".mean", one,
                                {{"axes", axes}, {"keepdims", int64_t{1}}});
    const ir::ValueId root = op("Sqrt", {mean}, name + ".root", one);
    const ir::ValueId normed = op("Div", {x, root}, name + ".normed", shape);
    const ir::ValueId weight = constant(name + ".weight", kType, {shape.back().value()}, 0.5, 1.5);
    return op("Mul", {normed, weight}, name, shape);
  }

  ir::ValueId biased_dot(ir::ValueId x, const std::string& name, int64_t n) {
    const ir::ValueId y = dot(x, name, n, sizes_.hidden);
    if (!form_.bias) return y;
    const ir::ValueId bias = constant(name + ".bias", kType, {n});
    return op("Add", {y, bias}, name + ".biased", *graph.value(y).shape);
  }

  ir::ValueId view(ir::ValueId x, const std::string& name, int64_t heads) {
    return op("Reshape", {x}, name, {form_.batch, form_.tokens, heads, sizes_.head_size});
  }

  // Of the third dim.
  ir::ValueId slice(ir::ValueId x, const std::string& name, int64_t start, int64_t count) {
    Shape shape = *graph.value(x).shape;
    std::vector<std::string> starts(shape.size(), "0");
    starts[2] = std::to_string(start);
    shape[2] = count;
    const std::vector<int64_t> steps(shape.size(), 1);
    return op("tenon::Slice", {x}, name, shape, {{"starts", starts}, {"steps", steps}});
  }

  ir::ValueId attend(const std::vector<ir::ValueId>& heads) {
    const Dim b = form_.batch, s = form_.tokens, p = Dim::symbol("p");
    const int64_t d = sizes_.head_size;
    const Dim cached = form_.symbolic_heads ? Dim::symbol("h") : Dim(sizes_.kv_heads);
    ir::Attention attention;
    attention.q = heads[0];
    attention.k = heads[1];
    attention.v = heads[2];
    const DType cache_type = form_.coded_caches ? DType::kI8 : kType;
    attention.past_k = input("past_k", cache_type, {b, cached, p, d});
    attention.past_v = input("past_v", cache_type, {b, cached, p, d});
    if (form_.coded_caches) {
      attention.cache_type = DType::kI8;
      attention.k_scale = constant("k_scale", kType, {sizes_.kv_heads, 1, d}, 0.01, 0.1);
      attention.v_scale = constant("v_scale", kType, {sizes_.kv_heads * d}, 0.01, 0.1);
    }
    if (form_.head_mask) attention.mask = input("mask", kType, {1, sizes_.q_heads, s, p + s});
    if (form_.sinks) attention.sinks = constant("sinks", kType, {sizes_.q_heads});
    attention.cos = constant("cos", kType, {64, d / 2});
    attention.sin = constant("sin", kType, {64, d / 2});
    attention.q_heads = sizes_.q_heads;
    attention.kv_heads = sizes_.kv_heads;
    attention.q_layout = attention.k_layout = attention.v_layout = "bshd";
    attention.y_layout = "bs(hd)";
    attention.causal_top_left = true;
    ir::Node node;
    attention.write_to(node);
    node.name = "attention";
    const Shape present{b, sizes_.kv_heads, p + s, d};
    node.outputs = {graph.add_value(value("attended", kType, rows(sizes_.q_heads * d))),
                    graph.add_value(value("present_k", cache_type, present)),
                    graph.add_value(value("present_v", cache_type, present))};
    const ir::ValueId y = node.outputs[0];
    graph.add_node(std::move(node));
    if (form_.symbolic_heads) {
      graph.require({cached, ir::Relation::kEqual, sizes_.kv_heads, "attention", {}});
    }
    return y;
  }

  void write_weight(ir::ScaledDot& dot, const std::string& name, int64_t n, int64_t k) {
    const std::string w = name + ".weight", s = name + ".scale";
    dot.b_k_last = form_.weights != WeightFormat::kPlain && form_.weights != WeightFormat::kInt4;
    switch (form_.weights) {
      case WeightFormat::kPlain:
        dot.b = constant(w, kType, {k, n});
        break;
      case WeightFormat::kPlainRows:
        dot.b = constant(w, kType, {n, k});
        break;
      case WeightFormat::kNvfp4:
        dot.b = constant(w, DType::kF4E2M1, {n, k}, -6, 6);
        set_scale(dot, s, DType::kF8E4M3FN, {n, (k + 15) / 16}, 16);
        dot.alpha = constant(name + ".global", kType, {1}, 0.1, 0.2);
        break;
      case WeightFormat::kMxfp8:
        dot.b = constant(w, DType::kF8E4M3FN, {n, k});
        set_scale(dot, s, DType::kF8E8M0, {n, (k + 31) / 32}, 32);
        break;
      case WeightFormat::kInt4:
        dot.b = constant(w, DType::kI4, {k, n}, -8, 7);
        set_scale(dot, s, kType, {(k + 31) / 32, n}, 32);
        break;
      case WeightFormat::kInt4Bits:
        write_bits(dot, name, n, k);
        break;
    }
  }

  void set_scale(ir::ScaledDot& dot, const std::string& name, DType dtype,
                 std::vector<int64_t> dims, int64_t block) {
    dot.scale_b.scale = constant(name, dtype, std::move(dims), 0.25, 1);
    dot.scale_b.block = block;
  }

  // MatMulNBits: nibbles in bytes, zero points too.
  void write_bits(ir::ScaledDot& dot, const std::string& name, int64_t n, int64_t k) {
    constexpr int64_t kBlock = 32;
    const int64_t blocks = (k + kBlock - 1) / kBlock;
    dot.b = constant(name + ".weight", DType::kU8, {n, blocks, kBlock / 2}, 0, 255);
    dot.scale_b.zero_point = constant(name + ".zeros", DType::kU8, {n, (blocks + 1) / 2}, 0, 255);
    set_scale(dot, name + ".scale", kType, {n, blocks}, kBlock);
    dot.b_type = DType::kU4;
    dot.b_dims = {n, k};
  }

  DecoderSizes sizes_;
  DecoderForm form_;
  std::mt19937 random_;
};

}  // namespace tenon::testing
