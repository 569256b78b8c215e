// Golden texts: each tests/golden/*.txt holds cases of the form
//
//   CASE what it shows
//   RUN pass [pass...] [--sources]
//   graph … { … }
//   EXPECT
//   graph … { … }
//
// The graph is parsed, run through the passes (`fuse`: all of them) and printed; the print must be
// the expected text. TENON_UPDATE_GOLDEN=1 writes what came out into the files: read the diff.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "graph_partitioner/pipeline.h"

namespace tenon {
namespace {

struct Case {
  std::string title, run, graph, expected;
};

struct GoldenFile {
  std::string preamble;  // what stands before the first case
  std::vector<Case> cases;
};

GoldenFile read(const std::filesystem::path& path) {
  GoldenFile file;
  std::ifstream stream(path);
  std::string line;
  std::string* into = &file.preamble;
  while (std::getline(stream, line)) {
    if (line.rfind("CASE ", 0) == 0) {
      file.cases.push_back({line.substr(5), "", "", ""});
      into = &file.cases.back().graph;
    } else if (line.rfind("RUN ", 0) == 0 && !file.cases.empty()) {
      file.cases.back().run = line.substr(4);
    } else if (line == "EXPECT" && !file.cases.empty()) {
      into = &file.cases.back().expected;
    } else if (!line.empty() || into == &file.preamble) {
      *into += line + "\n";
    }
  }
  return file;
}

void write(const std::filesystem::path& path, const GoldenFile& file) {
  std::ofstream stream(path);
  stream << file.preamble;
  for (size_t i = 0; i < file.cases.size(); ++i) {
    const Case& one = file.cases[i];
    stream << fmt::format("{}CASE {}\nRUN {}\n{}EXPECT\n{}", i == 0 ? "" : "\n", one.title, one.run,
                          one.graph, one.expected);
  }
}

std::string run(const Case& one) {
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

class Golden : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(Golden, PrintsWhatIsExpected) {
  GoldenFile file = read(GetParam());
  ASSERT_FALSE(file.cases.empty()) << GetParam() << " holds no CASE";
  const bool update = std::getenv("TENON_UPDATE_GOLDEN") != nullptr;
  for (Case& one : file.cases) {
    SCOPED_TRACE(one.title);
    ASSERT_FALSE(one.run.empty()) << "the case has no RUN line";
    std::string printed;
    ASSERT_NO_THROW(printed = run(one));
    if (update) {
      one.expected = printed;
    } else {
      EXPECT_EQ(printed, one.expected);
    }
  }
  if (update) write(GetParam(), file);
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden")) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()),
                         [](const auto& info) { return info.param.stem().string(); });

}  // namespace
}  // namespace tenon
