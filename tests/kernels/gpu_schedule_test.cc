// What only schedules for a GPU promise.
#include <gtest/gtest.h>

#include <map>

#include "codegen/compile.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

Settings gpu_settings() {
  Settings settings;
  settings.host = codegen::detect_host();
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->threads = 32;
  return settings;
}

// Nobody looks at indices before a launch on a GPU: the kernel itself must stay inside the tensor.
TEST(GpuSchedule, IndicesOutsideMoveToTheNearestElement) {
  const ir::Graph graph = ir::parse(R"(
graph main {
  input %x: f32[8]
  input %i: i64[6]
  %y: f32[6] = GatherElements(%x, %i) {axis=0}
  output %y
}
)");
  const Settings settings = gpu_settings();
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, settings);
  ASSERT_NE(choice.chosen, nullptr) << choice.reason();
  const Lowered lowered = choice.chosen->lower(graph, node, settings);
  ASSERT_EQ(lowered.launches.size(), 1u);
  const Launch& launch = lowered.launches[0];
  EXPECT_FALSE(launch.checks.empty());

  std::array<float, 8> x{0, 1, 2, 3, 4, 5, 6, 7};
  std::array<int64_t, 6> indices{3, -1, 8, -9, int64_t{1} << 40, -(int64_t{1} << 40)};
  std::array<float, 6> y{};
  const std::map<ir::ValueId, void*> places = {
      {graph.find("x"), x.data()}, {graph.find("i"), indices.data()}, {graph.find("y"), y.data()}};
  std::vector<void*> buffers;
  for (const BufferArgument& argument : launch.buffers) buffers.push_back(places.at(argument.id));
  std::vector<int64_t> sizes;
  for (const Dim& dim : launch.indices) sizes.push_back(dim.value());
  const auto code = codegen::compile_host({{launch.kernel}}, settings.host);
  code->function(launch.kernel.name)(buffers.data(), sizes.data(), 0, launch.tasks.value());
  EXPECT_EQ(y, (std::array<float, 6>{3, 7, 7, 0, 7, 0}));
}

// The emitter deals tiles over a power of two of threads.
TEST(GpuSchedule, BlocksHaveAPowerOfTwoOfThreads) {
  for (const char* shape : {"1", "33", "384", "5000", "100000"}) {
    const ir::Graph graph = ir::parse(
        std::string("graph main {\n  input %x: f32[b,") + shape +
        "]\n  %y: f32[b,1] = tenon::Loop(%x) body {\n" + "    input %p: f32[b," + shape + "]\n" +
        "    %s: f32[b,1] = ReduceSum(%p) {axes=[1]}\n" + "    output %s\n  }\n  output %y\n}\n");
    Settings settings = gpu_settings();
    settings.gpu->threads = 1024;
    const ir::Node& node = graph.node(graph.order().front());
    const Choice choice = select(graph, node, settings);
    ASSERT_NE(choice.chosen, nullptr) << choice.reason();
    for (const Launch& launch : choice.chosen->lower(graph, node, settings).launches) {
      EXPECT_GE(launch.threads, 32) << shape;
      EXPECT_LE(launch.threads, 1024) << shape;
      EXPECT_EQ(launch.threads & (launch.threads - 1), 0) << shape;
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
