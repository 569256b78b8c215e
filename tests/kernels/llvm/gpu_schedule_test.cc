// What only schedules for a GPU promise.
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <stdexcept>

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

std::vector<Launch> launches_of(const ir::Graph& graph, const Settings& settings) {
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, settings);
  if (!choice.ok()) throw std::runtime_error(choice.reason());
  return choice.lower().launches;
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
  ASSERT_TRUE(choice.ok()) << choice.reason();
  const Lowered lowered = choice.lower();
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
    for (const Launch& launch : launches_of(graph, settings)) {
      EXPECT_GE(launch.threads, 32) << shape;
      EXPECT_LE(launch.threads, 1024) << shape;
      EXPECT_EQ(launch.threads & (launch.threads - 1), 0) << shape;
    }
  }
}

// A block that takes a second row loads it only after having stored the first.
TEST(GpuSchedule, ALongRowHasABlockToItself) {
  const ir::Graph graph = ir::parse(R"(
graph main {
  input %x: f16[65536,4096]
  %y: f16[65536,4096] = tenon::Loop(%x) body {
    input %a: f16[65536,4096]
    %m: f16[65536,1] = ReduceMax(%a) {axes=[1]}
    %s: f16[65536,4096] = Sub(%a, %m)
    output %s
  }
  output %y
}
)");
  Settings settings = gpu_settings();
  settings.gpu->threads = 1024;
  const std::vector<Launch> launches = launches_of(graph, settings);
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].tasks.value(), 65536);
  EXPECT_EQ(launches[0].threads, 128);
}

// A sine has a table of constants, and a kernel may have 64 KiB of them.
TEST(GpuSchedule, SinesDownColumnsFitIntoConstantMemory) {
  const ir::Graph graph = ir::parse(R"(
graph main {
  input %x: f32[m,n]
  %y: f32[m,n] = tenon::Loop(%x) body {
    input %a: f32[m,n]
    %b: f32[m,n] = Sin(%a)
    %m: f32[1,n] = ReduceSum(%b) {axes=[0]}
    %s: f32[m,n] = Sub(%b, %m)
    output %s
  }
  output %y
}
)");
  Settings settings = gpu_settings();
  settings.gpu->threads = 1024;
  for (const Launch& launch : launches_of(graph, settings)) {
    const std::string ptx = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu).ptx;
    const std::regex constant("\\.const [^\\[]*\\[(\\d+)\\]");
    int64_t bytes = 0;
    for (std::sregex_iterator at(ptx.begin(), ptx.end(), constant), end; at != end; ++at) {
      bytes += std::stoll((*at)[1]);
    }
    EXPECT_GT(bytes, 0);
    EXPECT_LE(bytes, 64 << 10);
  }
}

// No function is left to a library that a GPU does not have.
TEST(GpuSchedule, EveryFunctionHasCode) {
  const Settings settings = gpu_settings();
  for (const std::string type : {"f64", "f32", "f16"}) {
    for (const std::string op : {"Exp(%u)", "Log(%u)", "Sin(%u)", "Tan(%u)", "Erf(%u)", "Atanh(%u)",
                                 "Sqrt(%u)", "Abs(%u)", "Pow(%u, %u)", "Floor(%u)"}) {
      const std::string shape = type + "[8]";
      const ir::Graph graph =
          ir::parse("graph main {\n  input %x: " + shape + "\n  %y: " + shape +
                    " = tenon::Loop(%x) body {\n    input %u: " + shape + "\n    %v: " + shape +
                    " = " + op + "\n    output %v\n  }\n  output %y\n}\n");
      const Choice choice = select(graph, graph.node(graph.order().front()), settings);
      ASSERT_TRUE(choice.ok()) << type << " " << op << ": " << choice.reason();
      for (const Launch& launch : choice.lower().launches) {
        const auto code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
        EXPECT_NE(code.ptx.find(".entry"), std::string::npos) << type << " " << op;
      }
    }
  }
}

}  // namespace
}  // namespace tenon::kernels
