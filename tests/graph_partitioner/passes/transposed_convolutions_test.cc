// Every form of ConvTranspose against the float64 reference, before and after normalize().
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "graph_partitioner/passes/infer_shapes.h"
#include "graph_partitioner/passes/normalize.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

std::string list(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const int64_t number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return "[" + text + "]";
}

class Forms {
 public:
  explicit Forms(unsigned seed) : random_(seed) {}

  // One node with a bias; its output's shape is left to infer_shapes().
  ir::Graph next() {
    const int64_t rank = between(1, 3), group = between(1, 2);
    const auto numbers = [&](int64_t least, int64_t most) {
      std::vector<int64_t> made;
      for (int64_t i = 0; i < rank; ++i) made.push_back(between(least, most));
      return made;
    };
    std::vector<int64_t> x = {2, 2 * group}, w = {2 * group, between(1, 2)};
    for (const int64_t size : numbers(2, 4)) x.push_back(size);
    for (const int64_t tap : numbers(1, 4)) w.push_back(tap);
    std::string attributes = "group=" + std::to_string(group) + ", strides=" + list(numbers(1, 3)) +
                             ", dilations=" + list(numbers(1, 2));
    switch (between(0, 3)) {
      case 0:
        attributes +=
            ", auto_pad=\"" + std::string(between(0, 1) ? "SAME_UPPER" : "SAME_LOWER") + "\"";
        break;
      case 1:
        attributes += ", output_shape=" + list(numbers(3, 9));
        break;
      default:
        std::vector<int64_t> pads = numbers(0, 1);
        for (const int64_t pad : numbers(0, 1)) pads.push_back(pad);
        attributes += ", pads=" + list(pads) + ", output_padding=" + list(numbers(0, 3));
    }
    ir::Graph graph = ir::parse("graph g {\n input %x: f32" + list(x) + "\n input %w: f32" +
                                list(w) + "\n input %b: f32[" + std::to_string(w[1] * group) +
                                "]\n %y: f32[*] = ConvTranspose@11(%x, %w, %b) {" + attributes +
                                "}\n output %y\n}");
    infer_shapes(graph);
    return graph;
  }

 private:
  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  std::mt19937 random_;
};

// All sizes are at least one: others have nothing to compare.
bool has_elements(const ir::Graph& graph) {
  const auto& shape = graph.value(graph.outputs().front()).shape;
  return shape && std::ranges::all_of(*shape, [](const Dim& dim) { return dim.value() > 0; });
}

TEST(TransposedConvolutions, KeepTheResult) {
  Forms forms(3);
  int compared = 0;
  for (int i = 0; i < 300; ++i) {
    const ir::Graph before = forms.next();
    if (!has_elements(before)) continue;
    SCOPED_TRACE(ir::print(before));
    ir::Graph after = before;
    normalize(after);
    testing::expect_equivalent(before, after, {});
    for (const ir::NodeId id : after.order()) {
      const ir::Node& node = after.node(id);
      if (!node.is("ConvTranspose")) continue;
      EXPECT_EQ(node.input(2), ir::kNoValue);
      EXPECT_TRUE(node.has("pads") && !node.has("auto_pad") && !node.has("output_shape"));
    }
    ++compared;
  }
  EXPECT_GT(compared, 250);
}

}  // namespace
}  // namespace tenon
