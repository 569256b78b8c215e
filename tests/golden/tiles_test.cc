// The tile kernels of each skeleton as text: tests/golden/tiles/*.txt (golden_file.h). RUN names
// the processor ("aarch64-dotprod", "sm_90a") and the kernel to print, then
//   precision=int8   where rows may be rounded
//   candidate=…      no other one
//   any other word   a pass of the partitioner, run first
// The first node of the graph is lowered. Processors are named, so every machine lowers the same.
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "codegen/tile/text.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"
#include "tests/golden/golden_file.h"

namespace tenon::kernels {
namespace {

constexpr int kThreads = 4, kSmCount = 132;

struct Wanted {
  Settings settings;
  std::string kernel;
  std::vector<std::string> passes;
};

Wanted read_run(const std::string& run) {
  std::istringstream words(run);
  Wanted wanted;
  std::string processor;
  words >> processor >> wanted.kernel;
  if (processor.starts_with("sm_")) {
    codegen::GpuTarget target;
    target.arch = processor;
    target.sm_count = kSmCount;
    target.pipelines = true;
    wanted.settings.gpu = target;
    processor = "aarch64-neon";
  }
  wanted.settings.host = codegen::host_target(processor);
  wanted.settings.host.threads = kThreads;
  wanted.settings.host.tiles = wanted.settings.host.has("amx-tile");
  for (std::string word; words >> word;) {
    if (word == "precision=int8") {
      wanted.settings.precision = Precision::kInt8;
    } else if (word.starts_with("candidate=")) {
      wanted.settings.tuning.candidate = word.substr(word.find('=') + 1);
    } else {
      wanted.passes.push_back(word);
    }
  }
  return wanted;
}

std::string lower(const testing::GoldenCase& one) {
  const Wanted wanted = read_run(one.run);
  ir::Graph graph = ir::parse(one.graph);
  for (const std::string& pass : wanted.passes) graph = run_pass(pass, std::move(graph));
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, wanted.settings);
  if (!choice.ok()) throw std::invalid_argument(choice.reason());
  const Lowered lowered = choice.lower();
  std::string names;
  for (const Launch& launch : lowered.launches) {
    if (launch.kernel.name == wanted.kernel) return codegen::print(launch.kernel);
    names += " " + launch.kernel.name;
  }
  throw std::invalid_argument(
      fmt::format("{} has no kernel {}, but{}", choice.chosen(), wanted.kernel, names));
}

class Tiles : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Tiles, PrintWhatIsExpected) { testing::expect_golden(GetParam(), lower); }

// What is printed is a kernel: it parses, and prints the same again.
TEST_P(Tiles, ParseBack) {
  testing::expect_golden(GetParam(), [](const testing::GoldenCase& one) {
    return codegen::print(codegen::parse(one.expected));
  });
}

INSTANTIATE_TEST_SUITE_P(Files, Tiles,
                         ::testing::ValuesIn(testing::golden_files("tests/golden/tiles")),
                         [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace tenon::kernels
