#include "tests/golden/golden_file.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace tenon::testing {
namespace {

struct GoldenFile {
  std::string preamble;  // what stands before the first case
  std::vector<GoldenCase> cases;
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
    const GoldenCase& one = file.cases[i];
    stream << fmt::format("{}CASE {}\nRUN {}\n{}EXPECT\n{}", i == 0 ? "" : "\n", one.title, one.run,
                          one.graph, one.expected);
  }
}

}  // namespace

std::vector<std::filesystem::path> golden_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".txt" && entry.path().filename() != "CMakeLists.txt") {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  return files;
}

void expect_golden(const std::filesystem::path& path,
                   const std::function<std::string(const GoldenCase&)>& run) {
  GoldenFile file = read(path);
  ASSERT_FALSE(file.cases.empty()) << path << " holds no CASE";
  const bool update = std::getenv("TENON_UPDATE_GOLDEN") != nullptr;
  for (GoldenCase& one : file.cases) {
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
  if (update) write(path, file);
}

}  // namespace tenon::testing
