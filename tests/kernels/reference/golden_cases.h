// Graphs with stored inputs and outputs that a Python program writes when a test starts.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"
#include "kernels/reference/tensor.h"

namespace tenon::kernels::reference {

struct GoldenCase {
  std::string name;
  ir::Graph graph;
  std::vector<ReferenceTensor> inputs;
  std::vector<std::string> outputs;  // bytes
};

// A folder of cases, removed with this object.
class GoldenCases {
 public:
  // `generator` is a program of this folder. Without the virtual environment `missing()` says so.
  explicit GoldenCases(const std::string& generator);
  ~GoldenCases();
  GoldenCases(const GoldenCases&) = delete;
  GoldenCases& operator=(const GoldenCases&) = delete;

  const std::string& missing() const { return missing_; }
  std::vector<std::string> names() const;  // sorted
  GoldenCase load(const std::string& name) const;
  // The same with every input but the first as a constant, as weights, axes and shapes mostly are.
  GoldenCase load_with_constants(const std::string& name) const;

 private:
  GoldenCase complete(const std::string& name, const std::string& text) const;
  std::filesystem::path folder_;
  std::string missing_;
};

// Whether the reference knows every op of the graph, for inference.
bool is_judged(const GoldenCase& golden);
// How `results` differ from what is stored; empty when they agree within the stored type's
// rounding.
std::string disagreement(const GoldenCase& golden, const std::vector<ReferenceTensor>& results);

}  // namespace tenon::kernels::reference
