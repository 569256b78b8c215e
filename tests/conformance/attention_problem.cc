#include "tests/conformance/attention_problem.h"

#include <array>
#include <cmath>
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using ir::ValueId;

constexpr int64_t kAngleRows = 300;

class AttentionBuilder {
 public:
  AttentionBuilder(unsigned seed, std::span<const int64_t> depths, bool always_new_heads)
      : random_(seed), depths_(depths), always_new_heads_(always_new_heads) {}

  ir::Graph build() {
    graph_.name = "attention";
    dtype_ = std::array{DType::kF32, DType::kF32, DType::kF16, DType::kBF16}[pick(4)];
    depth_ = depths_[pick(depths_.size())];
    value_depth_ = pick(3) ? depth_ : 12;
    attention_.kv_heads = std::array<int64_t, 3>{1, 2, 3}[pick(3)];
    attention_.q_heads = attention_.kv_heads * std::array<int64_t, 3>{1, 2, 4}[pick(3)];
    const bool places_new_heads = (always_new_heads_ || pick(3) == 0) && depth_ >= 2;
    if (places_new_heads) t_ = keys_ = q_;
    places_new_heads&& pick(3) == 0 ? add_packed_operands() : add_operands();
    add_past();
    add_mask();
    add_rules();
    if (places_new_heads) add_norm();
    if (places_new_heads) add_rotary();
    add_node();
    return std::move(graph_);
  }

 private:
  size_t pick(size_t count) { return random_() % count; }

  ValueId input(const char* name, DType dtype, Shape shape) {
    ir::Value value;
    value.name = name;
    value.dtype = dtype;
    value.shape = std::move(shape);
    return graph_.add_input(std::move(value));
  }
  ValueId output(const char* name, DType dtype, Shape shape) {
    ir::Value value;
    value.name = name;
    value.dtype = dtype;
    value.shape = std::move(shape);
    const ValueId id = graph_.add_value(std::move(value));
    graph_.add_output(id);
    return id;
  }

  static Shape shape_in(const std::string& layout, const Dim& b, int64_t heads, const Dim& rows,
                        int64_t width) {
    if (layout == "bs(hd)") return {b, rows, heads * width};
    if (layout == "bshd") return {b, rows, heads, width};
    if (layout == "bhds") return {b, heads, width, rows};
    return {b, heads, rows, width};
  }

  void add_operands() {
    constexpr std::array kLayouts{"bhsd", "bshd", "bs(hd)", "bhds"};
    attention_.q_layout = kLayouts[pick(3)];
    attention_.k_layout = kLayouts[pick(4)];
    attention_.v_layout = kLayouts[pick(3)];
    attention_.y_layout = kLayouts[pick(3)];
    const int64_t kv = attention_.kv_heads;
    attention_.q =
        input("q", dtype_, shape_in(attention_.q_layout, b_, attention_.q_heads, q_, depth_));
    attention_.k = input("k", dtype_, shape_in(attention_.k_layout, b_, kv, t_, depth_));
    attention_.v = input("v", dtype_, shape_in(attention_.v_layout, b_, kv, t_, value_depth_));
  }

  // q, k and v side by side in one tensor.
  void add_packed_operands() {
    const int64_t q = attention_.q_heads, kv = attention_.kv_heads;
    value_depth_ = depth_;
    attention_.q = attention_.k = attention_.v = input("qkv", dtype_, {b_, q_, q + 2 * kv, depth_});
    attention_.q_layout = "bshd+0";
    attention_.k_layout = "bshd+" + std::to_string(q);
    attention_.v_layout = "bshd+" + std::to_string(q + kv);
    attention_.y_layout = "bs(hd)";
  }

  void add_past() {
    if (pick(3) == 0) {
      attention_.past_k = input("past_k", dtype_, {b_, attention_.kv_heads, p_, depth_});
      attention_.past_v = input("past_v", dtype_, {b_, attention_.kv_heads, p_, value_depth_});
      keys_ = p_ + t_;
    }
    if (pick(3) == 0) {
      attention_.kv_lengths = input("lengths", pick(2) ? DType::kI32 : DType::kI64, {b_});
    }
  }

  void add_mask() {
    const Dim one = 1, heads = attention_.q_heads;
    const std::array<Shape, 4> shapes{Shape{q_, keys_}, Shape{b_, one, one, keys_},
                                      Shape{b_, heads, q_, keys_}, Shape{one, one, q_, keys_}};
    if (pick(2)) attention_.mask = input("mask", pick(2) ? DType::kBool : dtype_, shapes[pick(4)]);
  }

  void add_rules() {
    attention_.causal = pick(4) == 0;
    attention_.causal_top_left = !attention_.causal && pick(4) == 0;
    if (pick(4) == 0) attention_.left_window = std::array<int64_t, 5>{0, 1, 4, 40, 90}[pick(5)];
    if (pick(6) == 0) attention_.right_window = std::array<int64_t, 4>{0, 1, 3, 50}[pick(4)];
    if (pick(4) == 0) attention_.softcap = 1.5f;
    if (pick(3) == 0) attention_.scale = 0.3f;
    if (pick(4) == 0) attention_.sinks = input("sinks", dtype_, {attention_.q_heads});
  }

  void add_norm() {
    if (pick(3) != 0) return;
    const DType type = pick(2) ? DType::kF32 : dtype_;
    attention_.q_norm = input("q_norm", type, {depth_});
    if (pick(4) != 0) attention_.k_norm = input("k_norm", type, {depth_});
    if (pick(2)) attention_.norm_epsilon = 1e-3f;
  }

  // All of a head or some of it; a table with positions or lengths, or angles for each token.
  void add_rotary() {
    const int64_t angles = pick(2) ? depth_ / 2 : (depth_ + 3) / 4;
    const DType type = pick(2) ? DType::kF32 : dtype_;
    const Dim batch = pick(2) ? b_ : Dim(1);
    attention_.interleaved = pick(2) != 0;
    const size_t kind = pick(3);
    const Shape shape = kind == 0 ? Shape{batch, q_, angles} : Shape{kAngleRows, angles};
    attention_.cos = input("cos", type, shape);
    attention_.sin = input("sin", type, shape);
    if (kind == 1 || (kind == 2 && attention_.kv_lengths == ir::kNoValue)) {
      attention_.positions = input("positions", pick(2) ? DType::kI32 : DType::kI64, {batch, q_});
    }
  }

  void add_node() {
    ir::Node node;
    attention_.write_to(node);
    node.name = "attention";
    node.outputs = {output(
        "y", dtype_, shape_in(attention_.y_layout, b_, attention_.q_heads, q_, value_depth_))};
    if (attention_.past_k != ir::kNoValue && pick(2)) {
      node.outputs.push_back(output("present_k", dtype_, {b_, attention_.kv_heads, keys_, depth_}));
      node.outputs.push_back(
          output("present_v", dtype_, {b_, attention_.kv_heads, keys_, value_depth_}));
    }
    graph_.add_node(std::move(node));
  }

  std::mt19937 random_;
  std::span<const int64_t> depths_;
  bool always_new_heads_;
  Dim b_ = Dim::symbol("b"), q_ = Dim::symbol("q"), t_ = Dim::symbol("t"), p_ = Dim::symbol("p");
  Dim keys_ = t_;
  DType dtype_ = DType::kF32;
  int64_t depth_ = 0, value_depth_ = 0;
  ir::Graph graph_;
  ir::Attention attention_;
};

}  // namespace

int64_t AttentionSizes::of(std::string_view symbol) const {
  return symbol == "b" ? b : symbol == "q" ? q : symbol == "t" ? t : p;
}

ir::Graph random_attention(unsigned seed, std::span<const int64_t> depths, bool always_new_heads) {
  return AttentionBuilder(seed, depths, always_new_heads).build();
}

std::vector<ReferenceTensor> attention_inputs(const ir::Graph& graph, const AttentionSizes& sizes,
                                              std::mt19937& random) {
  std::vector<ReferenceTensor> inputs;
  const bool past = graph.find("past_k") != ir::kNoValue;
  const bool places_new_heads = graph.find("cos") != ir::kNoValue;
  for (const ValueId id : graph.inputs()) {
    const ir::Value& value = graph.value(id);
    std::vector<int64_t> dims;
    for (const Dim& dim : *value.shape) {
      dims.push_back(dim.evaluate([&](std::string_view symbol) { return sizes.of(symbol); }));
    }
    ReferenceTensor tensor = random_tensor(value.dtype, dims, random);
    const int64_t keys = (places_new_heads ? sizes.q : sizes.t) + (past ? sizes.p : 0);
    for (int64_t i = 0; value.name == "positions" && i < tensor.elements(); ++i) {
      tensor.set_integer(i, static_cast<int64_t>(random() % kAngleRows));
    }
    for (int64_t i = 0; value.name == "lengths" && i < tensor.elements(); ++i) {
      tensor.set_integer(i, static_cast<int64_t>(random() % static_cast<unsigned>(keys + 1)));
    }
    for (int64_t i = 0; value.name == "mask" && tensor.is_real() && i < tensor.elements(); ++i) {
      if (random() % 4 == 0) tensor.set(i, -INFINITY);
    }
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

Tolerance attention_tolerance(const ir::Graph& graph) {
  const DType dtype = graph.value(graph.outputs()[0]).dtype;
  const double share = dtype == DType::kF32 ? 1e-5 : dtype == DType::kF16 ? 5e-3 : 1e-2;
  // Caches are copied, so they agree to the bit, but for keys that are computed.
  const size_t computed = graph.find("cos") != ir::kNoValue ? 2 : 1;
  return [share, computed](size_t output, int64_t, double expected) {
    return output < computed ? share * (1 + std::fabs(expected)) : 0;
  };
}

}  // namespace tenon::kernels
