#include "kernels/running/executable.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "base/error.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/build_program.h"
#include "kernels/running/program.h"
#include "kernels/selector.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

constexpr std::string_view kAddThenDouble = R"(
graph main {
  input %x: f32[n,m]
  input %y: f32[n,m]
  %s: f32[n,m] = tenon::Loop(%x, %y) body {
    input %a: f32[n,m]
    input %b: f32[n,m]
    %c: f32[n,m] = Add(%a, %b)
    output %c
  }
  %v: f32[n*m] = Reshape(%s)
  %d: f32[n*m] = tenon::Loop(%v) body {
    input %a: f32[n*m]
    %c: f32[n*m] = Add(%a, %a)
    output %c
  }
  output %d
}
)";

std::vector<HostTensor> ramp_inputs(int64_t n, int64_t m) {
  return {HostTensor::from(DType::kF32, {n, m}, [](int64_t i) { return static_cast<double>(i); }),
          HostTensor::from(DType::kF32, {n, m},
                           [](int64_t i) { return 0.5 * static_cast<double>(i); })};
}

std::vector<double> tripled_ramp(int64_t count) {
  std::vector<double> expected;
  for (int64_t i = 0; i < count; ++i) expected.push_back(3.0 * static_cast<double>(i));
  return expected;
}

TEST(Executable, RunsLaunchesInOrderThroughAView) {
  const TestGraph graph(kAddThenDouble);
  const auto outputs = graph.run(ramp_inputs(3, 37));
  EXPECT_EQ(outputs[0].dims, (std::vector<int64_t>{111}));
  expect_near(outputs[0].numbers(), tripled_ramp(111));
}

// A partition behind another one, which made `sizes` and `total`.
constexpr std::string_view kSizesFromElements = R"(
graph main {
  input %x: f32[n*m]
  input %sizes: i64[3] elements(n,m,7)
  input %total: i32[] elements(t)
  %v: f32[n,m] = Reshape(%x)
  %d: f32[n,m] = tenon::Loop(%v) body {
    input %a: f32[n,m]
    %c: f32[n,m] = Add(%a, %a)
    output %c
  }
  %w: i64[1] = tenon::ShapeValue() {dims=["t+m"]}
  output %d
  output %w
}
)";

std::vector<HostTensor> with_sizes(std::vector<double> sizes, double total, int64_t elements) {
  return {
      HostTensor::from(DType::kF32, {elements}, [](int64_t i) { return static_cast<double>(i); }),
      HostTensor::of(DType::kI64, {3}, sizes), HostTensor::of(DType::kI32, {}, {total})};
}

TEST(Executable, TakesSizesFromTheElementsOfAnInput) {
  const TestGraph graph(kSizesFromElements);
  for (const auto& [n, m, total] : {std::array{3, 5, 4}, std::array{5, 3, 4}, std::array{5, 3, 9},
                                    std::array{1, 15, 0}, std::array{0, 4, 1}}) {
    const auto outputs = graph.run(with_sizes({double(n), double(m), 7}, total, int64_t{n} * m));
    EXPECT_EQ(outputs[0].dims, (std::vector<int64_t>{n, m}));
    for (int64_t i = 0; i < int64_t{n} * m; ++i) EXPECT_EQ(outputs[0].numbers()[i], 2.0 * i);
    EXPECT_EQ(outputs[1].numbers(), std::vector<double>{double(total + m)});
  }
}

TEST(Executable, RefusesElementsThatContradictTheSizes) {
  const TestGraph graph(kSizesFromElements);
  graph.run(with_sizes({3, 5, 7}, 4, 15));
  const auto error_of = [&](std::vector<HostTensor> inputs) -> std::string {
    try {
      graph.run(std::move(inputs));
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of(with_sizes({3, 5, 8}, 4, 15)),
            "input 'sizes' holds [3,5,8], but the model expects [n,m,7], which by the sizes of the "
            "inputs is [3,5,7]");
  EXPECT_EQ(error_of(with_sizes({3, 5, 7}, -4, 15)),
            "input 'total' holds [-4], but the model expects [t]");
  EXPECT_NE(error_of(with_sizes({4, 5, 7}, 4, 15)).find("input 'x' has shape [15]"),
            std::string::npos);
  std::vector<HostTensor> longer = with_sizes({3, 5, 7}, 4, 15);
  longer[1] = HostTensor::of(DType::kI64, {4}, {3, 5, 7, 7});
  EXPECT_NE(error_of(std::move(longer)).find("input 'sizes' has shape [4]"), std::string::npos);
  EXPECT_EQ(graph.run(with_sizes({3, 5, 7}, 4, 15))[0].dims, (std::vector<int64_t>{3, 5}));
}

// Three products of one computed value, two of which have the same rows of it in int8: it is
// rounded once. The third reads another value.
TEST(Executable, ProductsOfOneValueShareItsRowsInInt8) {
  Settings settings = test_settings();
  settings.precision = Precision::kInt8;
  settings.tuning.candidate = "int8";
  const std::string weight(16 * 32, '3'), scale = "0000803f";
  std::string scales;
  for (int i = 0; i < 16; ++i) scales += scale;
  const auto text = [&](std::string_view second_input) {
    return fmt::format(R"(
graph main {{
  input %x: f32[n,32]
  const %w: i4[16,32] = hex:{}
  const %scales: f32[16,1] = hex:{}
  %s: f32[n,32] = tenon::Loop(%x) body {{
    input %a: f32[n,32]
    %c: f32[n,32] = Add(%a, %a)
    output %c
  }}
  %t: f32[n,32] = tenon::Loop(%x) body {{
    input %a: f32[n,32]
    %c: f32[n,32] = Mul(%a, %a)
    output %c
  }}
  %p: f32[n,16] = tenon::ScaledDot(%s, %w, _, _, %scales) {{b_k_last=1, block_b=32, result="f32"}}
  %q: f32[n,16] = tenon::ScaledDot({}, %w, _, _, %scales) {{b_k_last=1, block_b=32, result="f32"}}
  %r: f32[n,16] = tenon::ScaledDot(%t, %w, _, _, %scales) {{b_k_last=1, block_b=32, result="f32"}}
  output %p
  output %q
  output %r
}}
)",
                       weight, scales, second_input);
  };
  const ir::Graph shared = ir::parse(text("%s")), apart = ir::parse(text("%x"));
  const ir::Node* product = shared.producer(shared.outputs()[0]);
  if (settings.gpu || !select(shared, *product, settings).ok()) {
    GTEST_SKIP() << "no int8 dot instructions here";
  }
  settings.tuning.candidate.clear();  // loops have candidates of their own
  const auto launches = [&](const ir::Graph& graph) {
    return make_program(graph, settings, {}).launches.size();
  };
  EXPECT_EQ(launches(shared) + 1, launches(apart));

  const auto executable = build_for_test(shared, settings);
  for (const int64_t rows : {1, 5}) {
    TestContext context(shared, {HostTensor::from(DType::kF32, {rows, 32}, [](int64_t i) {
                          return static_cast<double>(i % 32 + 1);
                        })});
    executable->run(context);
    const auto outputs = context.take_outputs();
    // 3 (1 + ... + 32) twice, 3 (1 + 4 + ... + 1024)
    const auto all = [&](double number) {
      return std::vector<double>(static_cast<size_t>(rows * 16), number);
    };
    expect_near(outputs[0].numbers(), all(2 * 3 * 528.0), 0.01);
    EXPECT_EQ(outputs[1].bytes, outputs[0].bytes);
    expect_near(outputs[2].numbers(), all(3 * 11440.0), 0.01);
  }
}

// Of a graph of one launch: inputs that it may overwrite with y.
size_t buffers_in_place(std::string_view operands, std::string_view body) {
  const ir::Graph graph = ir::parse(fmt::format(R"(
graph main {{
  input %x: f32[n,n]
  input %z: f32[n]
  %y: f32[n,n] = tenon::Loop({}) body {{
    input %a: f32[n,n]
    input %b: f32[n]
    {}
    output %c
  }}
  output %y
}})",
                                                operands, body));
  const Program program = make_program(graph, test_settings(), {});
  EXPECT_EQ(program.launches.size(), 1u);
  for (const auto& [from, to] : program.launches[0].in_place) {
    EXPECT_EQ(program.slots[from].name, "x");
    EXPECT_EQ(program.slots[to].name, "y");
  }
  return program.launches[0].in_place.size();
}

TEST(Executable, ALoopMayWriteWhereItReadsAndNowhereElse) {
  EXPECT_EQ(buffers_in_place("%x, %z", "%c: f32[n,n] = Add(%a, %b)"), 1u);
  constexpr std::string_view kPlusSum = R"(
    %s: f32[n,1] = ReduceSum(%a) {axes=[1], keepdims=1}
    %t: f32[n,n] = Add(%a, %b)
    %c: f32[n,n] = Add(%t, %s))";
  EXPECT_EQ(buffers_in_place("%x, %z", kPlusSum), 1u);
  constexpr std::string_view kPlusTransposed = R"(
    %t: f32[n,n] = Transpose(%a) {perm=[1,0]}
    %s: f32[n,n] = Add(%t, %b)
    %c: f32[n,n] = Add(%a, %s))";
  EXPECT_EQ(buffers_in_place("%x, %z", kPlusTransposed), 0u);
  // On the host the output holds exponentials until their sum is known; a GPU computes them again.
  constexpr std::string_view kPlusSoftmax = R"(
    %t: f32[n,n] = Add(%a, %b)
    %e: f32[n,n] = Exp(%t)
    %s: f32[n,1] = ReduceSum(%e) {axes=[1], keepdims=1}
    %q: f32[n,n] = Div(%e, %s)
    %c: f32[n,n] = Add(%q, %a))";
  EXPECT_EQ(buffers_in_place("%x, %z", kPlusSoftmax), test_settings().gpu ? 1u : 0u);
}

TEST(Executable, EveryShapeOfOneGraphRuns) {
  const TestGraph graph(kAddThenDouble);
  for (int64_t n : {1, 2, 7, 0, 130}) {
    for (int64_t m : {1, 3, 64, 100, 1000}) {
      const auto outputs = graph.run(ramp_inputs(n, m));
      expect_near(outputs[0].numbers(), tripled_ramp(n * m));
    }
  }
}

TEST(Executable, MoreShapesThanTheCacheHolds) {
  const TestGraph graph(kAddThenDouble);
  for (int round = 0; round < 2; ++round) {
    for (int64_t n = 1; n <= 80; ++n) {
      expect_near(graph.run(ramp_inputs(n, 3))[0].numbers(), tripled_ramp(n * 3));
    }
  }
}

TEST(Executable, LargeLaunchesUseTheRuntimesThreads) {
  const TestGraph graph(kAddThenDouble);
  TestContext large(graph.graph, ramp_inputs(1000, 1000));
  graph.executable->run(large);
  EXPECT_GE(large.parallel_calls, 1);
  expect_near(large.take_outputs()[0].numbers(), tripled_ramp(1'000'000));

  TestContext small(graph.graph, ramp_inputs(2, 8));
  graph.executable->run(small);
  EXPECT_EQ(small.parallel_calls, 0) << "waking threads costs more than 16 elements";
}

TEST(Executable, ContradictoryShapesAreRefusedByName) {
  const TestGraph graph(kAddThenDouble);
  auto inputs = ramp_inputs(3, 4);
  inputs[1].dims = {4, 3};
  try {
    graph.run(std::move(inputs));
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("'y'"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("[4,3]"), std::string::npos) << error.what();
  }
  auto flat = ramp_inputs(3, 4);
  flat[0].dims = {12};
  EXPECT_THROW(graph.run(std::move(flat)), UserError);
}

// A table cut to min(4, n) rows is added to n rows: legal up to four of them.
TEST(Executable, SizesThatOnlyARunCanCompareAreCompared) {
  const TestGraph graph(R"(
graph main {
  input %x: f32[n]
  input %t: f32[4]
  %y: f32[n] = tenon::Loop(%x, %t) name="positions" body {
    input %a: f32[n]
    input %b: f32[4]
    %c: f32[min(4,n)] = tenon::Slice(%b) {starts=["0"], steps=[1]}
    %d: f32[n] = Add(%a, %c)
    output %d
  }
  output %y
}
)");
  const auto table = HostTensor::of(DType::kF32, {4}, {10, 20, 30, 40});
  expect_near(graph.run({HostTensor::of(DType::kF32, {3}, {1, 2, 3}), table})[0].numbers(),
              {11, 22, 33});
  try {
    graph.run({HostTensor::of(DType::kF32, {5}, {1, 2, 3, 4, 5}), table});
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("positions"), std::string::npos) << error.what();
  }
}

struct RelationCase {
  const char* relation;
  std::array<int64_t, 2> fitting, other;  // n and m
  const char* demand;
};

// Requirements of a graph are checked before anything runs, and the error names who asked.
TEST(Executable, RequirementsOfEachRelationAreChecked) {
  constexpr RelationCase kCases[] = {
      {"equal", {3, 3}, {1, 3}, "must be equal"},
      {"broadcasts", {3, 1}, {2, 3}, "neither is 1"},
      {"stretches", {1, 3}, {3, 1}, "the first is not 1"},
      {"at_most", {2, 3}, {4, 3}, "must not be larger"},
      {"divides", {2, 6}, {4, 6}, "must divide"},
      {"divides", {1, 0}, {0, 6}, "must divide"},
  };
  for (const RelationCase& known : kCases) {
    SCOPED_TRACE(known.relation);
    const TestGraph graph(fmt::format(R"(
graph main {{
  input %x: f32[n]
  input %y: f32[m]
  %s: f32[n] = tenon::Loop(%x) body {{
    input %a: f32[n]
    %c: f32[n] = Neg(%a)
    output %c
  }}
  require {}(n,m) name="who asks"
  output %s
}}
)",
                                      known.relation));
    const auto run = [&](std::array<int64_t, 2> sizes) {
      const auto zero = [](int64_t) { return 0.0; };
      return graph.run({HostTensor::from(DType::kF32, {sizes[0]}, zero),
                        HostTensor::from(DType::kF32, {sizes[1]}, zero)});
    };
    EXPECT_NO_THROW(run(known.fitting));
    try {
      run(known.other);
      FAIL() << "ran";
    } catch (const UserError& error) {
      const std::string told = error.what();
      EXPECT_NE(told.find("node 'who asks'"), std::string::npos) << told;
      EXPECT_NE(told.find(known.demand), std::string::npos) << told;
      EXPECT_NE(told.find(fmt::format("{} (n)", known.other[0])), std::string::npos) << told;
    }
    EXPECT_NO_THROW(run(known.fitting)) << "after a Run that was refused";
  }
}

TEST(Executable, ARequirementThatNoInputTellsRefusesTheNode) {
  const ir::Graph graph = ir::parse(R"(
graph main {
  input %x: f32[n]
  %s: f32[n] = tenon::Loop(%x) sources=[3] body {
    input %a: f32[n]
    %c: f32[n] = Neg(%a)
    output %c
  }
  require equal(n,unheard) name="who asks" sources=[3]
  output %s
}
)");
  const Support answer = supports(graph, graph.node(graph.order()[0]), Settings{});
  ASSERT_FALSE(answer);
  EXPECT_NE(answer.reason.find("'who asks'"), std::string::npos) << answer.reason;
  EXPECT_NE(answer.reason.find("unheard"), std::string::npos) << answer.reason;
}

TEST(Executable, SymbolsAreSolvedFromSumsAndMultiples) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: f32[2*n+1]
  %d: i64[2] = tenon::ShapeValue() {dims=["n", "2*n+1"]}
  %y: f32[2*n+1] = tenon::Loop(%x) body {
    input %a: f32[2*n+1]
    %c: f32[2*n+1] = Neg(%a)
    output %c
  }
  output %d
  output %y
}
)",
                                 {HostTensor::of(DType::kF32, {7}, {1, 2, 3, 4, 5, 6, 7})});
  expect_near(outputs[0].numbers(), {3, 7});
  expect_near(outputs[1].numbers(), {-1, -2, -3, -4, -5, -6, -7});
}

TEST(Executable, OutputsThatAliasAreCopied) {
  const auto outputs = run_graph(R"(
graph main {
  input %x: f32[n]
  const %k: f32[2] = hex:0000803f00000040
  %v: f32[1,n] = Reshape(%x)
  %y: f32[n] = tenon::Loop(%x) body {
    input %a: f32[n]
    %c: f32[n] = Neg(%a)
    output %c
  }
  %w: f32[n,1] = Reshape(%y)
  output %v
  output %y
  output %w
  output %y
  output %k
}
)",
                                 {HostTensor::of(DType::kF32, {3}, {1, 2, 3})});
  expect_near(outputs[0].numbers(), {1, 2, 3});
  EXPECT_EQ(outputs[0].dims, (std::vector<int64_t>{1, 3}));
  expect_near(outputs[1].numbers(), {-1, -2, -3});
  expect_near(outputs[2].numbers(), {-1, -2, -3});
  EXPECT_EQ(outputs[2].dims, (std::vector<int64_t>{3, 1}));
  expect_near(outputs[3].numbers(), {-1, -2, -3});
  expect_near(outputs[4].numbers(), {1, 2});
}

TEST(Executable, UnknownOpsAreRefusedByName) {
  const ir::Graph graph = ir::parse(R"(
graph main {
  input %x: f32[3]
  %y: f32[3] = Mystery(%x) name="the_node"
  output %y
}
)");
  try {
    build_on_host(graph, test_settings());
    FAIL() << "expected an error";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("the_node"), std::string::npos) << error.what();
  }
}

TEST(Executable, IndicesOutOfRangeFailTheRun) {
  const TestGraph graph(R"(
graph main {
  input %t: f32[4,2]
  input %i: i64[n]
  %y: f32[n,2] = tenon::Loop(%t, %i) name="lookup" body {
    input %a: f32[4,2]
    input %b: i64[n]
    %c: f32[n,2] = Gather(%a, %b) {axis=0}
    output %c
  }
  output %y
}
)");
  const auto table =
      HostTensor::from(DType::kF32, {4, 2}, [](int64_t i) { return static_cast<double>(i); });
  const auto good = graph.run({table, HostTensor::of(DType::kI64, {3}, {3, 0, -2})});
  expect_near(good[0].numbers(), {6, 7, 0, 1, 4, 5});
  for (double bad : {4.0, -5.0}) {
    try {
      graph.run({table, HostTensor::of(DType::kI64, {2}, {0, bad})});
      FAIL() << "expected an error";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find("lookup"), std::string::npos) << error.what();
    }
  }
}

// The last of its tasks to count writes how many came before it, and puts the counter back.
void count_tasks(void* const* buffers, const int64_t* indices, int64_t first, int64_t last) {
  for (int64_t task = first; task < last; ++task) {
    std::atomic_ref<int32_t> counter(*static_cast<int32_t*>(buffers[0]));
    const int32_t before = counter++;
    if (before != indices[0] - 1) continue;
    counter = 0;
    *static_cast<float*>(buffers[1]) = static_cast<float>(before);
  }
}

TEST(Executable, CountersAreZeroWhenALaunchBegins) {
  const ir::Graph graph = ir::parse(R"(graph g {
  input %x: f32[n]
  %y: f32[n] = Identity(%x)
  output %y
})");
  const Dim n = Dim::symbol("n");
  Program program(graph);
  program.inputs = {{"x", Shape{n}}};
  program.outputs = {{Shape{n}, DType::kF32}};
  program.slots = {{Slot::Kind::kInput, 0, {}, 0, 0, 0},
                   {Slot::Kind::kOutput, 0, {}, 0, 0, 0},
                   {Slot::Kind::kCounters, 0, {}, n * Dim(4), 0, 0}};
  program.output_slots = {1};
  CompiledLaunch launch;
  launch.function = count_tasks;
  launch.is_buffer = {true, true, false};
  launch.slots = {2, 1};
  launch.indices = {n};
  launch.tasks = n;
  program.launches = {launch};
  const auto executable = run_on_host(std::move(program), 1);
  for (const int64_t count : {7, 7, 300, 7, 5000, 300}) {
    TestContext context(graph, {HostTensor::from(DType::kF32, {count}, [](int64_t) { return 0; })});
    executable->run(context);
    EXPECT_EQ(context.take_outputs()[0].numbers()[0], static_cast<double>(count - 1));
  }
}

TEST(Executable, ReportNamesEachFusion) {
  const TestGraph graph(kAddThenDouble);
  const auto& fusions = graph.executable->fusions();
  ASSERT_EQ(fusions.size(), 2u);
  EXPECT_EQ(fusions[0].kind, "tenon::Loop");
  ASSERT_NE(fusions[0].chosen, "");
  EXPECT_NE(fusions[0].problem.find("f32[n,m]"), std::string::npos) << fusions[0].problem;
}

TEST(ExecutableConcurrent, ManyRunsOfDifferentShapesAtOnce) {
  const TestGraph graph(kAddThenDouble);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; i < 40; ++i) {
        const int64_t n = 1 + (i + t) % 9, m = 3 + (i * t) % 50;
        const auto got = graph.run(ramp_inputs(n, m))[0].numbers();
        if (got != tripled_ramp(n * m)) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace tenon::kernels
