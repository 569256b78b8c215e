// The C++ example, built from examples/cpp, runs a model that this test writes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

int run_example(const std::string& arguments, const std::string& output_file) {
  return std::system(
      (TENON_EXAMPLE_PROGRAM " " + arguments + " >" + output_file + " 2>&1").c_str());
}

TEST(CppExample, RunsAModel) {
  const Nvfp4Weight weight(32, 64);
  Graph graph;
  graph.input("x", kFloat, {"M", 64});
  weight.add_to(graph, "w");
  graph.node("MatMul", {"x", "w"}, {"y"}).output("y", kFloat, {"M", 32});
  const TemporaryFolder folder;
  std::ofstream(folder.path("model.onnx"), std::ios::binary) << model(graph);

  const std::string libraries = std::getenv("TENON_TEST_ONNXRUNTIME") + (" " + plugin_path());
  const std::string output = folder.path("output.txt");
  EXPECT_EQ(
      run_example(libraries + " " + folder.path("model.onnx") + " require_full_claim=1", output), 0)
      << read_file(output);
  EXPECT_EQ(read_file(output).rfind("y [ 1 32 ] starts with ", 0), 0U) << read_file(output);
}

TEST(CppExample, FeedsAndShowsEveryElementType) {
  Graph graph;
  const std::vector<Type> types = {kFloat, kHalf, kBFloat, kByte, kInt64, kBool, kString};
  std::string expected;
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string n = std::to_string(i);
    graph.input("x" + n, types[i], {"M", 2}).node("Identity", {"x" + n}, {"y" + n});
    graph.output("y" + n, types[i], {"M", 2});
    expected += "y" + n + " [ 1 2 ] starts with 1\n";
  }
  const TemporaryFolder folder;
  std::ofstream(folder.path("model.onnx"), std::ios::binary) << model(graph);
  const std::string libraries = std::getenv("TENON_TEST_ONNXRUNTIME") + (" " + plugin_path());
  const std::string output = folder.path("output.txt");
  EXPECT_EQ(run_example(libraries + " " + folder.path("model.onnx"), output), 0);
  EXPECT_EQ(read_file(output), expected);
}

TEST(CppExample, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  const std::string output = folder.path("output.txt");
  EXPECT_NE(run_example("", output), 0);
  EXPECT_NE(read_file(output).find("usage"), std::string::npos);
  EXPECT_NE(run_example("absent.so " + plugin_path() + " model.onnx", output), 0);
  EXPECT_NE(read_file(output).find("absent.so"), std::string::npos);
}

}  // namespace
}  // namespace tenon::testing
