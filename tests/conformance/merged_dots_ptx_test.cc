// The kernels of merged products as the assembler takes them for sm_90a.
#include <algorithm>
#include <chrono>

#include <gtest/gtest.h>

#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"
#include "tests/codegen/estimate_check.h"
#include "tests/conformance/judge.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

using codegen::Assembled;
using codegen::GpuCode;

DotProblem nvfp4(int64_t n) {
  const auto form = std::ranges::find(dot_forms(), "nvfp4", &DotForm::name);
  return {*form, DType::kF16, {n, 1024}, DotEnd::kAlpha};
}

// Every kernel of the one merged node that the graph becomes.
void expect_clean(ir::Graph graph) {
  if (codegen::assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const char* pass : {"decompose", "fuse_epilogues", "merge_dots"}) {
    graph = run_pass(pass, std::move(graph));
  }
  const ir::Node& node = graph.node(graph.order().front());
  const Settings settings = assembled_settings();
  const Choice choice = select(graph, node, settings);
  ASSERT_TRUE(choice.ok()) << choice.reason();
  const Lowered lowered = choice.lower();
  for (size_t i = 0; i < lowered.launches.size(); ++i) {
    const Launch& launch = lowered.launches[i];
    const auto start = std::chrono::steady_clock::now();
    const GpuCode code = codegen::compile_gpu(launch.kernel, launch.threads, *settings.gpu);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    const Assembled assembled = codegen::assemble(code, settings.gpu->arch);
    const std::string what = lowered.configs[i].problem + ": " + lowered.configs[i].chosen.text();
    ASSERT_EQ(assembled.status, 0) << what << "\n" << assembled.report;
    EXPECT_FALSE(codegen::has(assembled.report, codegen::kComplaints)) << what << "\n"
                                                                       << assembled.report;
    EXPECT_TRUE(assembled.keeps_to_registers()) << what << "\n" << assembled.report;
    // A division of 64 bits is a call, beside which nvJitLink serialises asynchronous products.
    const bool is_async = code.ptx.find("wgmma.") != std::string::npos;
    EXPECT_FALSE(is_async && codegen::has(code.ptx, "(div|rem)[.][su]64")) << what;
    codegen::expect_estimated(what, launch.kernel, launch.threads, *settings.gpu, code, assembled);
    printf("  compiled in %.2f s\n", took.count());
  }
}

TEST(MergedDotsPtx, ResultsOfTheirOwn) {
  std::mt19937 random(1);
  ir::Graph graph;
  const ir::ValueId a = add_rows(graph, DType::kF16, 1024);
  for (const int64_t n : {1024, 256, 256}) graph.add_output(add_dot(graph, a, nvfp4(n), random));
  expect_clean(std::move(graph));
}

TEST(MergedDotsPtx, GateAndUp) {
  std::mt19937 random(1);
  ir::Graph graph;
  const ir::ValueId a = add_rows(graph, DType::kF16, 1024);
  const ir::ValueId gate = add_dot(graph, a, nvfp4(1024), random);
  const ir::ValueId up = add_dot(graph, a, nvfp4(1024), random);
  const auto add = [&](const char* op, std::vector<ir::ValueId> inputs) {
    ir::Value result = graph.value(gate);
    result.producer = ir::kNoNode;
    ir::Node node;
    node.op = op;
    node.since_version = 14;
    node.inputs = std::move(inputs);
    node.outputs = {graph.add_value(std::move(result))};
    const ir::ValueId output = node.outputs[0];
    graph.add_node(std::move(node));
    return output;
  };
  graph.add_output(add("Mul", {add("Mul", {gate, add("Sigmoid", {gate})}), up}));
  expect_clean(std::move(graph));
}

}  // namespace
}  // namespace tenon::kernels
