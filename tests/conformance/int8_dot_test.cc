// Products with int8 activations on every level of instructions that this machine has, shapes at
// random, against float64.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/build_program.h"
#include "kernels/reference/evaluate.h"
#include "kernels/selector.h"
#include "tests/codegen/host_kernel.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

// Each form at its own levels' kernels: rows below and from a tile on, ends of tiles and panels.
constexpr int kProblems = 2, kRowCounts = 4;
constexpr int64_t kMostRows = 40;

bool has_int8(const DotForm& form) {
  return form.element == DType::kF4E2M1 || form.element == DType::kI4 ||
         form.element == DType::kU4 || form.element == DType::kI8 || form.element == DType::kU8;
}

Settings settings_for(const codegen::HostTarget& host) {
  Settings settings = conformance_settings();
  settings.host = host;
  settings.host.threads = 4;
  settings.precision = Precision::kInt8;
  settings.tuning.candidate = "int8";
  return settings;
}

// Activations that are rounded under one scale: those of a block, or of four of NVFP4's.
int64_t rounded_at_once(const DotProblem& problem) {
  const int64_t k = problem.size.k, block = problem.form.block;
  if (problem.form.scale == DType::kF8E4M3FN && k % 64 == 0) return 64;
  return block > 0 && k % block == 0 ? block : k;
}

// |a| becomes half a step of int8 under the largest of `block` neighbours: what rounding may take.
ReferenceTensor half_steps(const ir::Graph& graph, const std::vector<ReferenceTensor>& inputs,
                           int64_t block) {
  std::vector<ReferenceTensor> steps = inputs;
  for (int64_t first = 0; first < inputs[0].elements(); first += block) {
    double largest = 0;
    for (int64_t i = 0; i < block; ++i) {
      largest = std::max(largest, std::fabs(inputs[0].number(first + i)));
    }
    for (int64_t i = 0; i < block; ++i) steps[0].set(first + i, largest / 254);
  }
  return magnitudes(graph, steps);
}

bool uses_tiles(const Choice& choice) {
  return std::ranges::any_of(choice.lower().launches, [](const Launch& launch) {
    return launch.kernel.name == "dot_tiles";
  });
}

struct Taken {
  int problems = 0, tiled = 0;
};

// Counts the problems that an int8 kernel took.
void judge(const DotForm& form, const Settings& settings, std::mt19937& random, Taken& taken) {
  for (int i = 0; i < kProblems; ++i) {
    const auto pick = [&](int64_t low, int64_t high) {
      return std::uniform_int_distribution<int64_t>(low, high)(random);
    };
    // K of whole tiles, and once more of whole blocks alone.
    const DotSize size{pick(1, 70), i == 0 ? 64 * pick(1, 9) : 32 * pick(1, 5)};
    const DotProblem problem{form, DType::kF32, size, DotEnd::kBias, true};
    SCOPED_TRACE(settings.host.text() + ": " + describe(problem));
    const ir::Graph graph = build_dot(problem, random);
    const Choice choice = select(graph, graph.node(graph.order().front()), settings);
    if (!choice.ok()) continue;
    ++taken.problems;
    taken.tiled += uses_tiles(choice) ? 1 : 0;
    const std::unique_ptr<Executable> executable = build_on_host(graph, settings);
    for (int j = 0; j < kRowCounts; ++j) {
      const int64_t rows = j == 0 ? pick(1, 15) : pick(1, kMostRows);
      const std::vector<ReferenceTensor> inputs = dot_inputs(graph, rows, random);
      const Tolerance exact = dot_tolerance(problem, magnitudes(graph, inputs));
      const ReferenceTensor steps = half_steps(graph, inputs, rounded_at_once(problem));
      const Tolerance tolerance = [&](size_t output, int64_t index, double expected) {
        return 1.01 * steps.number(index) + exact(output, index, expected);
      };
      EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                             tolerance),
                "")
          << rows << " rows";
    }
  }
}

TEST(ConformanceInt8Dot, RandomShapesOnEveryLevel) {
  if (conformance_settings().gpu) GTEST_SKIP() << "kernels of hosts";
  std::mt19937 random(21);
  Taken taken;
  for (const codegen::HostTarget& host : codegen::runnable_targets()) {
    for (const DotForm& form : dot_forms()) {
      if (has_int8(form)) judge(form, settings_for(host), random, taken);
    }
  }
  if (taken.problems == 0) GTEST_SKIP() << "this machine has no int8 dot instructions";
}

// What is made for other machines means the same everywhere.
TEST(ConformanceInt8Dot, KernelsOfOtherMachines) {
  if (conformance_settings().gpu) GTEST_SKIP() << "kernels of hosts";
  for (const char* name : {"aarch64-dotprod", "x86_64-avx2", "x86_64-avx512vnni", "x86_64-amx"}) {
    Settings settings = settings_for(codegen::host_target(name));
    settings.emulate = true;
    std::mt19937 random(22);
    Taken taken;
    for (const DotForm& form : dot_forms()) {
      const bool is_4_bit = form.element == DType::kF4E2M1 || form.element == DType::kU4;
      if (is_4_bit) judge(form, settings, random, taken);
    }
    EXPECT_GE(taken.problems, 8) << name;
    EXPECT_EQ(taken.tiled > 2, settings.host.tiles) << name;
  }
}

// What stands on tile registers, compiled for a machine without them.
TEST(ConformanceInt8Dot, TilesAnywhere) {
  if (conformance_settings().gpu) GTEST_SKIP() << "kernels of hosts";
  Settings settings = settings_for(codegen::detect_host());
  std::erase_if(settings.host.features, [](const std::string& f) { return f.starts_with("amx"); });
  settings.host.tiles = true;
  std::mt19937 random(23);
  Taken taken;
  for (const DotForm& form : dot_forms()) {
    // One of them: under an emulator of the processor compiling takes its time.
    if (form.name == "nvfp4") judge(form, settings, random, taken);
  }
  EXPECT_EQ(taken.tiled, kProblems);
}

// Weights are exact in bf16, and so are whole numbers up to 256: nothing but the sum rounds.
TEST(ConformanceInt8Dot, TilesRoundActivationsAlone) {
  if (conformance_settings().gpu) GTEST_SKIP() << "kernels of hosts";
  Settings settings = settings_for(codegen::host_target("x86_64-amx"));
  settings.emulate = true;
  std::mt19937 random(25);
  for (const DotForm& form : dot_forms()) {
    if (form.name != "nvfp4" && form.name != "mxfp4") continue;
    const DotProblem problem{form, DType::kF32, {40, 288}, DotEnd::kBias, true};
    SCOPED_TRACE(describe(problem));
    const ir::Graph graph = build_dot(problem, random);
    std::vector<ReferenceTensor> inputs = dot_inputs(graph, 20, random);
    std::uniform_int_distribution<int> whole(-256, 256);
    for (int64_t i = 0; i < inputs[0].elements(); ++i) inputs[0].set(i, whole(random));
    const std::unique_ptr<Executable> executable = build_on_host(graph, settings);
    EXPECT_EQ(disagreement(run(*executable, graph, inputs), reference::evaluate(graph, inputs),
                           dot_tolerance(problem, magnitudes(graph, inputs))),
              "");
  }
}

TEST(ConformanceInt8Dot, TileRegisters) {
  if (conformance_settings().gpu) GTEST_SKIP() << "kernels of hosts";
  const Settings settings = settings_for(codegen::detect_host());
  if (!settings.host.tiles) GTEST_SKIP() << "this CPU has no AMX, or Linux refuses its tiles";
  std::mt19937 random(24);
  Taken taken;
  for (int i = 0; i < 4; ++i) {
    for (const DotForm& form : dot_forms()) {
      if (form.element == DType::kF4E2M1) judge(form, settings, random, taken);
    }
  }
  EXPECT_GE(taken.tiled, 12);
}

}  // namespace
}  // namespace tenon::kernels
