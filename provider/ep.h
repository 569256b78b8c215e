// One session's provider: GetCapability and Compile, and what they share (options, report).
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/candidate.h"
#include "provider/options.h"
#include "provider/report.h"

namespace tenon::provider {

class Ep : public OrtEp {
 public:
  Ep(Options options, const OrtLogger& logger);

 private:
  void get_capability(const OrtGraph& graph, OrtEpGraphSupportInfo& support);
  void keep(GraphReport graph);
  std::optional<std::string> find_refusal() const;
  void compile(const OrtGraph** graphs, const OrtNode** fused_nodes, size_t count,
               OrtNodeComputeInfo** computes);
  void log(OrtLoggingLevel level, const std::string& message) const;

  const Options options_;
  const OrtLogger& logger_;
  kernels::Settings settings_;
  std::mutex mutex_;  // sessions may compile on several threads
  Report report_;
  int partitions_ = 0;
  // GetCapability cannot fail a session (its errors are only logged): what must fail is kept for
  // Compile, or for the first Run where nothing was compiled.
  std::optional<std::string> refusal_;
};

}  // namespace tenon::provider
