// The contexts that a session writes: one file beside the context model for all partitions, or one
// for each inside of its node.
#pragma once

#include <onnxruntime_c_api.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/context_file.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/program.h"
#include "provider/compile.h"
#include "provider/context_node.h"
#include "provider/context_settings.h"
#include "provider/report.h"

namespace tenon::provider {

class ContextOutput {
 public:
  // `model_path`: of the model that is compiled; empty: it came from memory. `kept`: values that
  // the first node names as inputs, so that the runtime keeps them in the model. Throws UserError
  // where nothing tells a place for the file, or it cannot be written.
  ContextOutput(ContextSettings settings, const std::string& model_path,
                std::vector<std::string> kept);
  ContextOutput(const ContextOutput&) = delete;
  ContextOutput& operator=(const ContextOutput&) = delete;
  // Takes back a file that was published and not kept, unless it was there before.
  ~ContextOutput();

  // The name of a partition in what is written.
  std::string name_of(std::string_view partition) const;
  // A partition as compiled for one target.
  // `files`: where the model keeps constants, for has_weights_outside().
  void add(std::string_view partition, const kernels::Program& program,
           const kernels::Settings& settings, std::vector<kernels::BytesOfFile> files = {});
  bool has_weights_outside() const { return settings_.weights_outside; }
  // When it was added for all targets: the node that will stand for it.
  void add_node(std::string_view partition, const CompiledPartition& compiled,
                const OrtNode& fused_node);
  // Publishes what was written. The runtime takes over the nodes, in the order of add_node().
  std::vector<OrtNode*> finish();
  // Nothing can fail any more before the runtime writes the model.
  void keep() { taken_back_.clear(); }
  WrittenContext report() const { return report_; }

 private:
  std::filesystem::path path_of_data(const Digest& digest) const;
  ContextWriter& writer_of(std::string_view partition);
  void check_file(const kernels::BytesOfFile& bytes);
  void finish_embedded();
  void finish_file();

  const ContextSettings settings_;
  const std::string context_model_;  // of the context model; empty: contexts are inside of it
  const std::string model_folder_;
  const std::vector<std::string> kept_;
  std::unique_ptr<ContextWriter> file_;
  struct Embedded {
    std::string partition;
    std::unique_ptr<ContextWriter> writer;
  };
  std::vector<Embedded> embedded_;
  std::map<std::string, kernels::WeightFile> weight_files_;
  std::vector<ContextNode> nodes_;
  WrittenContext report_;
  std::string taken_back_;  // a file of ours that no model names yet; empty: none
};

}  // namespace tenon::provider
