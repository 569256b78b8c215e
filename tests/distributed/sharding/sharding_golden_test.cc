// Golden texts: `RUN rank ranks`; what is expected is the report and the rank's graph.
#include <filesystem>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "tests/golden/golden_file.h"

namespace tenon {
namespace {

std::string run(const testing::GoldenCase& one) {
  ir::Graph graph = ir::parse(one.graph);
  if (const Support valid = ir::verify(graph); !valid) return "bad input: " + valid.reason;
  distributed::ShardingOptions options;
  std::istringstream(one.run) >> options.rank >> options.ranks;
  options.least_gathered_bytes = options.least_scattered_bytes = 0;
  const std::string report = distributed::shard(graph, options).text();
  if (const Support valid = ir::verify(graph); !valid) return "bad result: " + valid.reason;
  return report + print(graph);
}

class ShardingGolden : public ::testing::TestWithParam<std::filesystem::path> {};

TEST_P(ShardingGolden, PrintsWhatIsExpected) { testing::expect_golden(GetParam(), run); }

INSTANTIATE_TEST_SUITE_P(
    Files, ShardingGolden,
    ::testing::ValuesIn(testing::golden_files("tests/distributed/sharding/golden")),
    [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace tenon
