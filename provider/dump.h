// `dump_dir`: every stage of every partition and kernel as text files, numbered in order.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "codegen/compile.h"
#include "graph_partitioner/pipeline.h"

namespace tenon::provider {

class Dump {
 public:
  // An empty folder name: nothing is written and the sinks are empty.
  Dump(const std::string& folder, std::string_view partition);

  void graph(std::string_view stage, const ir::Graph& graph) const;
  PassObserver observer() const;
  codegen::StageSink kernel_sink() const;

 private:
  struct Writer;
  std::shared_ptr<Writer> writer_;  // null: off
};

}  // namespace tenon::provider
