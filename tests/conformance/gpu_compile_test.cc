// Kernels for a real GPU, compiled where there is none: every form of dot, at the sizes of tiles
// that a device gets.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/running/device_executable.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

Settings real_gpu_settings() {
  Settings settings;
  settings.host = codegen::detect_host();
  settings.gpu = codegen::GpuTarget{};
  return settings;
}

TEST(GpuCompile, EveryFormOfDot) {
  unsigned seed = 1;
  for (const DotForm& form : dot_forms()) {
    for (const DType activation : {DType::kF32, DType::kF16, DType::kBF16}) {
      SCOPED_TRACE(std::string(form.name) + " " + std::string(name(activation)));
      std::mt19937 random(seed);
      const DotProblem problem{form, activation, {130, 256}, static_cast<DotEnd>(seed++ % 4), true};
      const ir::Graph graph = build_dot(problem, random);
      const Settings settings = real_gpu_settings();
      const Support support = runs(graph, settings);
      ASSERT_TRUE(support) << support.reason;
      EXPECT_NO_THROW(build_on_device(graph, settings, nullptr, {}));
    }
  }
}

// A bias is the graph's own: no launch writes it, so that no kernel waits before it reads it.
TEST(GpuCompile, ConstantsOfTheGraphAreConstantInKernels) {
  std::mt19937 random(1);
  const DotForm& form = dot_forms().front();
  const DotProblem problem{form, DType::kF16, {130, 256}, DotEnd::kBias, true};
  Settings settings = real_gpu_settings();
  settings.gpu->pipelines = true;
  int kernels = 0;
  const codegen::StageSink sink = [&](std::string_view, std::string_view stage,
                                      std::string_view text) {
    if (stage != "tile") return;
    ++kernels;
    EXPECT_NE(text.find("%bias: constant aligned buffer"), std::string_view::npos)
        << text.substr(0, 400);
    EXPECT_NE(text.find("%y0: buffer"), std::string_view::npos) << text.substr(0, 400);
  };
  build_on_device(build_dot(problem, random), settings, nullptr, {}, sink);
  EXPECT_GT(kernels, 0);
}

// It would come a microsecond after the sums that it is added to.
TEST(GpuCompile, SkinnyGemmsLoadWhatTheyAddBeforeTheirProducts) {
  std::mt19937 random(1);
  const auto form = std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  const DotProblem problem{*form, DType::kF16, {130, 1024}, DotEnd::kBias, true};
  Settings settings = real_gpu_settings();
  settings.gpu->pipelines = true;
  int kernels = 0;
  const codegen::StageSink sink = [&](std::string_view name, std::string_view stage,
                                      std::string_view text) {
    if (stage != "tile" || !name.starts_with("skinny_gemm")) return;
    ++kernels;
    EXPECT_LT(text.find("load %bias"), text.find(" = pipeline ")) << text;
  };
  build_on_device(build_dot(problem, random, 1), settings, nullptr, {}, sink);
  EXPECT_GT(kernels, 0);
}

// What such a product writes counts as there for whoever comes behind it: no dependents are
// launched before its end.
TEST(GpuCompile, ProductsWithoutPipelinesDoNotUsePdl) {
  std::mt19937 random(1);
  const DotForm& form = dot_forms().front();
  const ir::Graph graph = build_dot({form, DType::kF16, {130, 256}, DotEnd::kBias, true}, random);
  int kernels = 0;
  const codegen::StageSink sink = [&](std::string_view, std::string_view stage,
                                      std::string_view text) {
    if (stage != "tile") return;
    ++kernels;
    EXPECT_EQ(text.find(" pdl "), text.npos) << text.substr(0, 400);
  };
  build_on_device(graph, real_gpu_settings(), nullptr, {}, sink);
  EXPECT_GT(kernels, 0);
}

// Products fetch weights while a loop makes their rows. Loops that make lengths and the like launch
// no dependents, since who comes behind them reads those without waiting.
TEST(GpuCompile, LoopsThatMakeRowsOfProductsUsePdl) {
  std::mt19937 random(1);
  const DotForm& form = dot_forms().front();
  ir::Graph graph = build_dot({form, DType::kF16, {130, 256}, DotEnd::kBias, true}, random);
  // Before: a loop over what is multiplied. Beside: one over the same input.
  const ir::NodeId product = graph.order().front();
  const ir::ValueId x = graph.node(product).inputs[0];
  const auto add_loop = [&](const std::string& name) {
    const std::string type = fmt::format("f16{}", text(*graph.value(x).shape));
    ir::Value made = graph.value(x);
    made.name = name;
    ir::Node loop;
    loop.op = ir::kLoop;
    loop.inputs = {x};
    loop.outputs = {graph.add_value(std::move(made))};
    loop.body = std::make_shared<ir::Graph>(ir::parse(fmt::format(
        "graph body {{\n  input %in: {0}\n  %out: {0} = Neg(%in)\n  output %out\n}}", type)));
    const ir::ValueId out = loop.outputs[0];
    graph.insert_before(product, std::move(loop));
    return out;
  };
  graph.node(product).inputs[0] = add_loop("rows");
  graph.add_output(add_loop("beside"));
  Settings settings = real_gpu_settings();
  settings.gpu->pipelines = true;
  std::map<std::string, bool> uses_pdl;
  const codegen::StageSink sink = [&](std::string_view name, std::string_view stage,
                                      std::string_view text) {
    if (stage == "tile") uses_pdl[std::string(name)] = text.find(" pdl ") != text.npos;
  };
  build_on_device(graph, settings, nullptr, {}, sink);
  EXPECT_EQ(uses_pdl.at("loop_0"), true);
  EXPECT_EQ(uses_pdl.at("loop_1"), false);
}

TEST(GpuCompile, LengthsOfCachesAreMadeFirst) {
  constexpr const char* kText = R"(graph decode {
  input %q: f16[1,8,1,128]
  input %k: f16[1,2,2048,128]
  input %v: f16[1,2,2048,128]
  input %before: i32[1]
  %made: f16[1,8,1,128] = tenon::Loop(%q) name="rows" body {
    input %in: f16[1,8,1,128]
    %out: f16[1,8,1,128] = Neg(%in)
    output %out
  }
  %lengths: i32[1] = tenon::Loop(%before) name="lengths" body {
    input %in: i32[1]
    %out: i32[1] = Neg(%in)
    output %out
  }
  %y: f16[1,8,1,128] = tenon::Attention(%made, %k, %v, _, _, _, %lengths) {kv_heads=2, q_heads=8}
  output %y
})";
  Settings settings = real_gpu_settings();
  settings.gpu->pipelines = true;
  const Program program = make_program(ir::parse(kText), settings, {});
  ASSERT_GE(program.launches.size(), 3u);
  EXPECT_EQ(program.launches[0].node, "lengths");
  EXPECT_EQ(program.launches[1].node, "rows");
}

// Parts of a split attention meet before the wait of PDL, where its queries are there: in memory
// that stays theirs for the whole program.
TEST(GpuCompile, SharesOfQueriesThatTheCallerBringsHaveMemoryOfTheirOwn) {
  constexpr const char* kText = R"(graph decode {
  input %q: f16[1,8,1,128]
  input %k: f16[1,2,2048,128]
  input %v: f16[1,2,2048,128]
  %made: f16[1,8,1,128] = tenon::Loop(%q) body {
    input %in: f16[1,8,1,128]
    %out: f16[1,8,1,128] = Neg(%in)
    output %out
  }
  %brought: f16[1,1,8,128] = Reshape(%q)
  %y: f16[1,8,1,128] = tenon::Attention(%brought, %k, %v) {kv_heads=2, q_heads=8, q_layout="bshd"}
  %z: f16[1,8,1,128] = tenon::Attention(%made, %k, %v) {kv_heads=2, q_heads=8}
  output %y
  output %z
})";
  Settings settings = real_gpu_settings();
  settings.gpu->pipelines = true;
  std::map<std::string, bool> own;
  const codegen::StageSink sink = [&](std::string_view name, std::string_view stage,
                                      std::string_view text) {
    if (stage != "tile" || !name.starts_with("flash_decode")) return;
    own[std::string(name)] = text.find("%outputs: own aligned buffer<f32>") != text.npos;
  };
  const Program program = make_program(ir::parse(kText), settings, sink);
  ASSERT_EQ(own.size(), 2u);
  EXPECT_TRUE(own.begin()->second);
  EXPECT_FALSE(own.rbegin()->second);
  const auto last = static_cast<int>(program.launches.size()) - 1;
  int rooms = 0;
  for (const Slot& slot : program.slots) {
    if (!slot.own) continue;
    ++rooms;
    EXPECT_EQ(slot.first, 0);
    EXPECT_GE(slot.last, last);
  }
  EXPECT_EQ(rooms, 3);  // outputs, maxima, totals
}

}  // namespace
}  // namespace tenon::kernels
