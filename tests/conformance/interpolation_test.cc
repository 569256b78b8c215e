// Pixels that are picked and weighed, in the kernels that passes make of them, against the float64
// reference of what GridSample and Resize decompose into.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/passes/decompose.h"
#include "graph_partitioner/passes/infer_shapes.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"

namespace tenon::kernels {
namespace {

struct Sizes {
  int64_t batch, height, width;
};

ir::Graph fused_for(const ir::Graph& graph, const Settings& settings) {
  return fuse(graph, {}, [&](const ir::Graph& whole, const ir::Node& node) {
    const Choice choice = select(whole, node, settings);
    return choice.ok() ? Support::yes() : Support::no(choice.reason());
  });
}

ReferenceTensor uniform(DType dtype, std::vector<int64_t> dims, double reach,
                        std::mt19937& random) {
  ReferenceTensor tensor = ReferenceTensor::zeros(dtype, std::move(dims));
  std::uniform_real_distribution<double> numbers(-reach, reach);
  for (double& value : tensor.reals) value = numbers(random);
  return tensor.rounded();
}

// Pixels lie within 1 and weights sum up to less than 2.5. A place is rounded to 2^-23 of the
// image's size, and the result moves with it by twice a pixel, or four times where it is cubic.
// That may round the other way: to a neighbour in the result's type.
void expect_right(const ir::Graph& graph, const std::vector<std::vector<ReferenceTensor>>& feeds) {
  const Settings settings = conformance_settings();
  ir::Graph plain = graph;
  infer_shapes(plain);
  decompose(plain);
  const ir::Graph fused = fused_for(graph, settings);
  const std::unique_ptr<Executable> executable = build_for_test(fused, settings);
  for (const auto& inputs : feeds) {
    const double step = 2 * unit_roundoff(graph.value(graph.outputs().front()).dtype);
    const Tolerance tolerance = [&](size_t, int64_t, double expected) {
      return 1e-4 + step * std::abs(expected);
    };
    EXPECT_EQ(disagreement(run(*executable, fused, inputs), reference::evaluate(plain, inputs),
                           tolerance),
              "");
  }
}

constexpr Sizes kSizes[] = {{1, 5, 4}, {2, 1, 7}, {3, 12, 9}};

TEST(Interpolation, GridsOfEveryForm) {
  for (const char* type : {"f32", "f16"}) {
    for (const char* mode : {"nearest", "linear", "cubic"}) {
      for (const char* padding : {"zeros", "border", "reflection"}) {
        const ir::Graph graph = ir::parse(fmt::format(
            R"(graph g {{
              input %x: {0}[n,3,h,w]
              input %g: f32[n,p,5,2]
              %y: {0}[n,3,p,5] = GridSample@20(%x, %g) {{mode="{1}", padding_mode="{2}"}}
              output %y
            }})",
            type, mode, padding));
        SCOPED_TRACE(ir::print(graph));
        std::mt19937 random(1);
        const DType dtype = std::string(type) == "f32" ? DType::kF32 : DType::kF16;
        std::vector<std::vector<ReferenceTensor>> feeds;
        for (const auto& [batch, height, width] : kSizes) {
          feeds.push_back({uniform(dtype, {batch, 3, height, width}, 1, random),
                           uniform(DType::kF32, {batch, height + 2, 5, 2}, 1.7, random)});
        }
        expect_right(graph, feeds);
      }
    }
  }
}

// Sizes that are known are constants by then, others are computed in the Run.
TEST(Interpolation, ImagesAreResizedAsOne) {
  for (const char* mode : {"linear", "cubic"}) {
    for (const char* shape : {"n,3,h,w|n,3,2*h,3*w", "2,3,4,5|2,3,8,15"}) {
      const std::string from = std::string(shape).substr(0, std::string(shape).find('|'));
      const std::string to = std::string(shape).substr(std::string(shape).find('|') + 1);
      const ir::Graph graph = ir::parse(fmt::format(
          R"(graph g {{
            input %x: f16[{}]
            const %s: f32[4] = hex:0000803f0000803f0000004000004040
            %y: f16[{}] = Resize@19(%x, _, %s) {{mode="{}"}}
            output %y
          }})",
          from, to, mode));
      SCOPED_TRACE(ir::print(graph));
      std::mt19937 random(2);
      std::vector<std::vector<ReferenceTensor>> feeds;
      if (from[0] == '2') {
        feeds.push_back({uniform(DType::kF16, {2, 3, 4, 5}, 1, random)});
      } else {
        for (const auto& [batch, height, width] : kSizes) {
          feeds.push_back({uniform(DType::kF16, {batch, 3, height, width}, 1, random)});
        }
      }
      expect_right(graph, feeds);
      const ir::Graph fused = fused_for(graph, conformance_settings());
      int loops = 0;
      for (const ir::NodeId id : fused.order()) loops += fused.node(id).is(ir::kLoop) ? 1 : 0;
      if (from[0] == '2') {
        EXPECT_EQ(loops, 1) << ir::print(fused);
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
