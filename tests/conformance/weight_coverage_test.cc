// Every kind of weight that Tenon promises to multiply from its packed form: which candidate takes
// it on a GPU with pipelines, and what its packed form weighs against the file's.
#include <set>

#include <gtest/gtest.h>

#include "kernels/llvm/scaled_dot/fragment_weight.h"
#include "kernels/selector.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

constexpr DotSize kSize{384, 1024};
constexpr std::array kActivations = {DType::kF16, DType::kBF16, DType::kF32};

Settings gpu_settings() {
  Settings settings = conformance_settings();
  settings.gpu = codegen::GpuTarget{};
  settings.gpu->pipelines = true;
  return settings;
}

// Integers with the scales of DequantizeLinear (f32) and of the activations; zero points or none;
// both layouts, every size of blocks.
std::vector<DotForm> integer_kinds(DType activation) {
  std::vector<DotForm> kinds;
  for (const DType element :
       {DType::kI4, DType::kU4, DType::kI8, DType::kU8, DType::kI2, DType::kU2}) {
    for (const int64_t block : {16, 32, 64, 128, 256, 0}) {
      for (const DType scale : std::set{activation, DType::kF32}) {
        for (const DType zero : {DType::kUndefined, element}) {
          for (const bool k_last : {true, false}) {
            kinds.push_back({.name = "integers",
                             .element = element,
                             .scale = scale,
                             .block = block,
                             .zero = zero,
                             .k_last = k_last});
          }
        }
      }
    }
  }
  return kinds;
}

std::vector<DotForm> float_kinds(DType activation) {
  constexpr DType kF32 = DType::kF32, kE4M3 = DType::kF8E4M3FN, kE5M2 = DType::kF8E5M2;
  std::vector<DotForm> kinds;
  for (const bool k_last : {true, false}) {
    const auto add = [&](std::string_view name, DType element, DType scale, int64_t block,
                         bool per_channel = true, int64_t rows = 1) {
      kinds.push_back({.name = name,
                       .element = element,
                       .scale = scale,
                       .block = block,
                       .per_channel = per_channel,
                       .k_last = k_last,
                       .rows = k_last ? rows : 1});
    };
    if (activation != kF32) add("plain", activation, DType::kUndefined, 0);
    add("fp4, f32 scales", DType::kF4E2M1, kF32, 16);
    add("nvfp4", DType::kF4E2M1, kE4M3, 16);
    add("mxfp4", DType::kF4E2M1, DType::kF8E8M0, 32);
    for (const DType element : {kE4M3, kE5M2}) {
      add("mxfp8", element, DType::kF8E8M0, 32);
      add("fp8 per tensor", element, kF32, 0, false);
      add("fp8 per channel", element, kF32, 0);
      add("fp8 1x128", element, kF32, 128);
      add("fp8 1x128, 16-bit scales", element, activation, 128);
      add("fp8 128x128", element, kF32, 128, true, 128);
    }
  }
  return kinds;
}

std::string describe(const DotForm& form) {
  std::string text(form.name);
  text += " " + std::string(name(form.element));
  if (form.scale != DType::kUndefined) text += " scales " + std::string(name(form.scale));
  text += form.block > 0 ? " block " + std::to_string(form.block) : "";
  if (form.zero != DType::kUndefined) text += " zero points";
  return text + (form.k_last ? " [N,K]" : " [K,N]");
}

size_t stored_bytes(const ir::Graph& graph, const ir::BlockScale& scale, ir::ValueId weight) {
  size_t bytes = graph.value(weight).constant->bytes;
  for (const ir::ValueId id : {scale.scale, scale.zero_point}) {
    if (id != ir::kNoValue) bytes += graph.value(id).constant->bytes;
  }
  return bytes;
}

constexpr double kMostGrowth = 1.05;

void expect_pipelined(const DotForm& form, DType activation) {
  std::mt19937 random(1);
  const ir::Graph graph = build_dot({form, activation, kSize, DotEnd::kPlain}, random);
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, gpu_settings());
  ASSERT_TRUE(choice.ok());
  const ScaledDotProblem problem = describe_scaled_dot(graph, node).problem;
  const FragmentLayout layout = fragment_layout(graph, problem).layout;
  const int64_t apart = layout.sides_apart ? layout.blocks() * layout.side_words() : 0;
  const auto words =
      static_cast<double>(layout.row_units() * (layout.steps() * layout.unit_words() + apart));
  const double ratio =
      words * 4 / static_cast<double>(stored_bytes(graph, problem.dot.scale_b, problem.dot.b));
  const std::string what = describe(form) + " x " + std::string(name(activation));
  const std::string taken(choice.chosen());
  printf("%-68s %-12s %.3f of the file\n", what.c_str(), taken.c_str(), ratio);
  EXPECT_EQ(taken, "pipelined") << what << ": " << choice.verdicts.front().support.reason;
  EXPECT_LE(ratio, kMostGrowth) << what;
}

TEST(WeightCoverage, FloatsArePipelined) {
  for (const DType activation : kActivations) {
    for (const DotForm& form : float_kinds(activation)) expect_pipelined(form, activation);
  }
}

TEST(WeightCoverage, IntegersArePipelined) {
  for (const DType activation : kActivations) {
    for (const DotForm& form : integer_kinds(activation)) expect_pipelined(form, activation);
  }
}

}  // namespace
}  // namespace tenon::kernels
