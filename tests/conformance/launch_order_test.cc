// Programs on the GPU that the stub plays, their launches in sampled orders: the bits of launches
// one by one. And a program in which one launch reads too soon: other bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/device/device.h"
#include "kernels/running/device_executable.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/random_graph.h"
#include "tests/conformance/scaled_dot_problem.h"
#include "tests/kernels/device/stub_driver.h"

namespace tenon::kernels {
namespace {

using test::StubDriver;
using ::testing::HasSubstr;

const bool chosen = setenv("TENON_TEST_TARGET", "gpu", 1) == 0;

constexpr unsigned kOrders = 4;

// NaN where the other has it, and no difference else.
std::string difference(const std::vector<ReferenceTensor>& results,
                       const std::vector<ReferenceTensor>& expected) {
  return disagreement(results, expected, [](size_t, int64_t, double) { return 0.0; });
}

// A loop that makes the rows of a product: the product fetches its weights meanwhile.
ir::Graph product_of_made_rows(std::mt19937& random) {
  const auto form = std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  ir::Graph graph = build_dot({*form, DType::kF16, {256, 512}, DotEnd::kBias, true}, random);
  const ir::NodeId product = graph.order().front();
  const ir::ValueId x = graph.node(product).inputs[0];
  ir::Value made = graph.value(x);
  made.name = "made";
  ir::Node loop;
  loop.op = ir::kLoop;
  loop.inputs = {x};
  loop.outputs = {graph.add_value(std::move(made))};
  loop.body = std::make_shared<ir::Graph>(
      ir::parse(fmt::format("graph body {{\n  input %in: f16{0}\n  %out: f16{0} = Neg(%in)\n  "
                            "output %out\n}}",
                            text(*graph.value(x).shape))));
  graph.node(product).inputs[0] = loop.outputs[0];
  graph.insert_before(product, std::move(loop));
  return graph;
}

class LaunchOrderTest : public ::testing::Test {
 protected:
  // In order, then in sampled ones: whether one of these gave something else.
  bool depends_on_order(Executable& executable, const ir::Graph& graph,
                        const std::vector<ReferenceTensor>& inputs) {
    const auto expected = run(executable, graph, inputs);
    bool differs = false;
    for (unsigned seed = 1; seed <= kOrders; ++seed) {
      stub_.script("order " + std::to_string(seed));
      differs = differs || !difference(run(executable, graph, inputs), expected).empty();
    }
    stub_.take_reports();  // and in order again
    return differs;
  }

  StubDriver stub_;
  std::shared_ptr<device::Device> device_ = device::Device::open(0);
};

TEST_F(LaunchOrderTest, RandomGraphsGiveTheSameBits) {
  const Settings settings = conformance_settings();
  int ran = 0;
  long by_pdl = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    const RandomGraph random = random_graph(seed, 4 + static_cast<int>(seed % 12));
    if (random.graph.outputs().empty()) continue;
    const ir::Graph fused =
        fuse(random.graph, {}, [&](const ir::Graph& part, const ir::Node& node) {
          return supports(part, node, settings);
        });
    if (!runs(fused, settings)) continue;
    const auto executable = build_on_device(fused, settings, device_, {});
    std::mt19937 values(seed);
    const auto inputs = random_inputs(random.graph, 2, 5, values);
    const long before = stub_.calls("cuLaunchKernelEx");
    const auto expected = run(*executable, fused, inputs);
    by_pdl += stub_.calls("cuLaunchKernelEx") - before;
    for (unsigned order = 1; order <= kOrders; ++order) {
      stub_.script("order " + std::to_string(order));
      EXPECT_EQ(difference(run(*executable, fused, inputs), expected), "") << "seed " << seed;
    }
    EXPECT_EQ(stub_.take_reports(), "") << "seed " << seed;
    ++ran;
  }
  std::cout << ran << " graphs ran, " << by_pdl << " launches by PDL\n";
  EXPECT_GT(ran, 40);
  EXPECT_GT(by_pdl, 0);
}

// A launch in front makes them, and the product's weights are fetched beside it.
TEST_F(LaunchOrderTest, DequantisedRowsAreThereBeforeTheirProduct) {
  Settings settings = conformance_settings();
  settings.gpu->pipelines = true;
  const auto form = std::ranges::find(dot_forms(), "fp8_tensor", &DotForm::name);
  for (const LeftForm& left : left_forms()) {
    DotProblem problem{*form, DType::kF16, {256, 512}, DotEnd::kBias};
    problem.left = left;
    std::mt19937 random(1);
    const ir::Graph graph = build_dot(problem, random);
    const ir::Graph fused = fuse(graph, {}, [&](const ir::Graph& part, const ir::Node& node) {
      return supports(part, node, settings);
    });
    const Program program = make_program(fused, settings, {});
    EXPECT_GE(program.dependencies.launches().size(), 2u) << left.name;
    EXPECT_EQ(program.dependencies.verify(program.slots).reason, "") << left.name;
    const auto executable = run_on_device(program, *settings.gpu, device_, {});
    EXPECT_FALSE(depends_on_order(*executable, fused, dot_inputs(graph, 12, random))) << left.name;
  }
}

TEST_F(LaunchOrderTest, AProductThatReadsItsRowsTooSoonIsFound) {
  std::mt19937 random(1);
  const ir::Graph graph = product_of_made_rows(random);
  Settings settings = conformance_settings();
  settings.gpu->pipelines = true;
  Program program = make_program(graph, settings, {});
  ASSERT_EQ(program.dependencies.verify(program.slots).reason, "");
  const std::vector<ReferenceTensor> inputs = dot_inputs(graph, 12, random);
  const auto right = run_on_device(program, *settings.gpu, device_, {});
  EXPECT_FALSE(depends_on_order(*right, graph, inputs));

  // The stub runs the tile program that PTX carries.
  int mutated = 0;
  for (auto& code : program.gpu_code) {
    const std::string is = "%x: aligned buffer", is_not = "%x: constant aligned buffer";
    const size_t at = code->ptx.find(is);
    if (at == std::string::npos || at > code->ptx.find(".visible")) continue;
    codegen::GpuCode other = *code;
    other.ptx.replace(at, is.size(), is_not);
    code = std::make_shared<const codegen::GpuCode>(std::move(other));
    ++mutated;
  }
  ASSERT_GT(mutated, 0);
  const auto wrong = run_on_device(program, *settings.gpu, device_, {});
  EXPECT_TRUE(depends_on_order(*wrong, graph, inputs));

  for (LaunchDependencies::Use& use : program.dependencies.launches().back().uses) {
    use.before_wait = use.reads;
  }
  EXPECT_THAT(program.dependencies.verify(program.slots).reason,
              HasSubstr("reads made before it waits"));
}

}  // namespace
}  // namespace tenon::kernels
