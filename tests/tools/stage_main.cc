// Text in, named passes, text out: tenon_stage [--sources] <pass>... < graph.txt
// The name `fuse` stands for the whole pipeline, `fuse-each` prints the graph after every pass.
// `shard=0/2` makes the share of rank 0 of 2; in front of `fuse` it is done in its place within.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"

namespace {

// "0/2".
tenon::ShardFn share_of(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) throw tenon::UserError("write shard=rank/ranks");
  tenon::distributed::ShardingOptions options;
  options.rank = std::stoll(std::string(text.substr(0, slash)));
  options.ranks = std::stoll(std::string(text.substr(slash + 1)));
  options.least_gathered_bytes = options.least_scattered_bytes = 0;
  return [options](tenon::ir::Graph& graph) {
    fmt::print(stderr, "{}", tenon::distributed::shard(graph, options).text());
  };
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
    tenon::ir::Graph graph = tenon::ir::parse(text);
    tenon::ir::PrintOptions options;
    tenon::ShardFn shard;
    for (int i = 1; i < argc; ++i) {
      const std::string_view name = argv[i];
      if (name == "--sources") {
        options.sources = true;
      } else if (name.starts_with("shard=")) {
        shard = share_of(name.substr(6));
      } else if (name == "fuse") {
        graph = tenon::fuse(std::move(graph), {}, {}, std::exchange(shard, {}));
      } else if (name == "fuse-each") {
        graph = tenon::fuse(
            std::move(graph),
            [&](std::string_view pass, const tenon::ir::Graph& after) {
              fmt::print("# after {}\n{}\n", pass, print(after, options));
            },
            {}, std::exchange(shard, {}));
      } else {
        graph = tenon::run_pass(name, std::move(graph));
      }
    }
    if (shard) shard(graph);
    std::cout << print(graph, options);
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tenon_stage: {}\n", error.what());
    return 1;
  }
}
