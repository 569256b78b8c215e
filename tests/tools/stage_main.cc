// Text in, named passes, text out: tenon_stage [--sources] <pass>... < graph.txt
// The name `fuse` stands for the whole pipeline, `fuse-each` prints the graph after every pass.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"

int main(int argc, char** argv) {
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    tenon::ir::Graph graph = tenon::ir::parse(text);
    tenon::ir::PrintOptions options;
    for (int i = 1; i < argc; ++i) {
      const std::string_view name = argv[i];
      if (name == "--sources") {
        options.sources = true;
      } else if (name == "fuse") {
        graph = tenon::fuse(std::move(graph));
      } else if (name == "fuse-each") {
        graph = tenon::fuse(std::move(graph),
                            [&](std::string_view pass, const tenon::ir::Graph& after) {
                              fmt::print("# after {}\n{}\n", pass, print(after, options));
                            });
      } else {
        graph = tenon::run_pass(name, std::move(graph));
      }
    }
    std::cout << print(graph, options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tenon_stage: {}\n", error.what());
    return 1;
  }
}
