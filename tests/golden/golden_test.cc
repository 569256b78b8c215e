// Golden texts: each tests/golden/*.txt holds cases of the form
//
//   CASE what it shows
//   RUN pass [pass...] [--sources]
//   graph … { … }
//   EXPECT
//   graph … { … }
//
// The graph is parsed, run through the passes (`fuse`: all of them) and printed; the print must be
// the expected text.
#include <filesystem>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/pipeline.h"
#include "tests/golden/golden_file.h"

namespace tenon {
namespace {

std::string run(const testing::GoldenCase& one) {
  ir::Graph graph = ir::parse(one.graph);
  if (const Support valid = ir::verify(graph); !valid) return "bad input: " + valid.reason;
  ir::PrintOptions options;
  std::istringstream words(one.run);
  for (std::string word; words >> word;) {
    if (word == "--sources") {
      options.sources = true;
    } else if (word == "fuse") {
      graph = fuse(std::move(graph));
    } else {
      graph = run_pass(word, std::move(graph));
    }
  }
  return print(graph, options);
}

class Golden : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, PrintsWhatIsExpected) { testing::expect_golden(GetParam(), run); }

INSTANTIATE_TEST_SUITE_P(Files, Golden, ::testing::ValuesIn(testing::golden_files("tests/golden")),
                         [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace tenon
