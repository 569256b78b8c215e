// Contexts that a session opens: a node names its file or holds it, the file holds the partition.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <memory>
#include <string>

#include "base/context_file.h"
#include "kernels/outside_weights.h"
#include "provider/compile.h"
#include "provider/context_node.h"
#include "provider/context_settings.h"

namespace tenon::provider {

// Files by path: all nodes of a model name the same one, which is opened once.
class ContextInput {
 public:
  ContextInput(ContextSettings settings, const Options& options)
      : settings_(std::move(settings)), options_(options) {}

  // `graph`: what was claimed for `node`, the only one that it has. Throws UserError that says what
  // is wrong with the context.
  CompiledPartition open(const OrtGraph& graph, const OrtNode& node, const Target& target,
                         std::shared_ptr<DiskCache> cache);

 private:
  std::shared_ptr<const ContextFile> file_of(const OrtGraph& graph, ContextNode& node);
  std::shared_ptr<const kernels::WeightFile> weight_file_of(const OrtGraph& graph,
                                                            const std::string& name);

  const ContextSettings settings_;
  const Options& options_;
  std::map<std::string, std::shared_ptr<const ContextFile>> files_;
  std::map<std::string, std::shared_ptr<const kernels::WeightFile>> weight_files_;
};

}  // namespace tenon::provider
