// Files of golden cases: a graph, what is done to it, and the text that must come out.
//
//   CASE what it shows
//   RUN words for whoever runs it
//   graph … { … }
//   EXPECT
//   text
//
// TENON_UPDATE_GOLDEN=1 writes what came out into the files: read the diff.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tenon::testing {

struct GoldenCase {
  std::string title, run, graph, expected;
};

// The files of one folder, sorted.
std::vector<std::filesystem::path> golden_files(const std::filesystem::path& folder);

// Fails the current test where `run` prints something else than a case expects.
void expect_golden(const std::filesystem::path& path,
                   const std::function<std::string(const GoldenCase&)>& run);

}  // namespace tenon::testing
