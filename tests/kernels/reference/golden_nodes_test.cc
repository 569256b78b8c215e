// Holds the reference to ONNX's own node tests: golden_nodes.py writes them when the test starts.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"

namespace tenon::kernels::reference {
namespace {

namespace fs = std::filesystem;

const char* const kPython = ".venv/bin/python";
const char* const kGenerator = "tests/kernels/reference/golden_nodes.py";

// The reference knows inference only.
bool trains(const std::string& name) { return name.find("training") != std::string::npos; }

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool evaluates(const ir::Graph& graph) {
  for (const ir::NodeId id : graph.order()) {
    if (!is_known(graph.node(id).op)) return false;
  }
  return true;
}

std::vector<ReferenceTensor> load_inputs(const ir::Graph& graph, const std::string& stem) {
  std::vector<ReferenceTensor> inputs;
  for (size_t i = 0; i < graph.inputs().size(); ++i) {
    const ir::Value& value = graph.value(graph.inputs()[i]);
    const std::string bytes = read(stem + ".in" + std::to_string(i));
    inputs.push_back(ReferenceTensor::from_bytes(value.dtype, static_dims(*value.shape), bytes.data()));
  }
  return inputs;
}

// How far the stored result, which is rounded and computed in its own type, may be from ours.
double tolerance(DType dtype, double value) {
  const double relative = dtype == DType::kF16 ? 4e-3 : dtype == DType::kBF16 ? 2e-2 : 1e-4;
  return is_small_float(dtype) ? 0 : relative * std::fabs(value) + relative / 10;
}

std::string difference(const ReferenceTensor& ours, const ReferenceTensor& stored) {
  for (int64_t i = 0; i < ours.elements(); ++i) {
    const double a = ours.number(i), b = stored.number(i);
    const bool equal = std::isnan(b) ? std::isnan(a)
                       : std::isinf(b) ? ours.rounded().number(i) == b
                                       : std::fabs(a - b) <= tolerance(ours.dtype, b);
    if (!equal) {
      return "element " + std::to_string(i) + " is " + std::to_string(a) + ", stored " + std::to_string(b);
    }
  }
  return "";
}

std::string judge(const std::string& stem, const ir::Graph& graph) {
  try {
    const std::vector<ReferenceTensor> results = evaluate(graph, load_inputs(graph, stem));
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string bytes = read(stem + ".out" + std::to_string(i));
      const std::string why = difference(
          results[i], ReferenceTensor::from_bytes(results[i].dtype, results[i].dims, bytes.data()));
      if (!why.empty()) return "output " + std::to_string(i) + ", " + why;
    }
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

TEST(GoldenNodes, ReferenceAgreesWithOnnx) {
  if (!fs::exists(kPython)) GTEST_SKIP() << "no " << kPython << ": run scripts/setup.sh";
  const fs::path folder = fs::temp_directory_path() / ("tenon_nodes_" + std::to_string(getpid()));
  const std::string command = std::string(kPython) + " " + kGenerator + " " + folder.string();
  ASSERT_EQ(std::system(command.c_str()), 0);
  int judged = 0;
  std::set<std::string> ops;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    if (file.path().extension() != ".ir") continue;
    const std::string name = file.path().stem();
    const ir::Graph graph = ir::parse(read(file.path()));
    if (!evaluates(graph) || trains(name)) continue;
    ++judged;
    for (const ir::NodeId id : graph.order()) ops.insert(graph.node(id).op);
    EXPECT_EQ(judge((folder / name).string(), graph), "") << name;
  }
  fs::remove_all(folder);
  std::cout << judged << " cases, " << ops.size() << " ops\n";
  EXPECT_GT(judged, 1200);
}

}  // namespace
}  // namespace tenon::kernels::reference
