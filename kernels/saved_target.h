// What a program in a context file was compiled for, and whether that serves here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/context_file.h"
#include "kernels/planning/candidate.h"
#include "kernels/saved_program.h"

namespace tenon::kernels {

struct SavedTarget {
  std::optional<codegen::GpuTarget> gpu;  // empty: the host
  codegen::HostTarget host;
  std::string build;  // of the Tenon that wrote it
  size_t launches = 0, kernels = 0, machine_code = 0;
  int64_t shared_bytes = 0;  // that its largest CTA takes
  uint64_t weight_bytes = 0;
  SavedWeights weights{};
  int cudnn = 0;  // version that it was made with, where it calls cuDNN; else 0

  static SavedTarget of(const Settings& settings);
  std::string key() const;       // "sm_90a", "aarch64": as sections are called
  std::string describe() const;  // with its features
  std::string to_bytes() const;
  static SavedTarget from_bytes(std::string_view bytes);  // throws UserError
};

// Names of sections. Keys hold no slash; a partition's name may.
std::string section_name(std::string_view what, std::string_view key, std::string_view partition);
std::string weight_section(std::string_view key, size_t slot, std::string_view partition);
std::string graph_section(std::string_view partition);

// (partition, what it was compiled for), in the order of the file.
struct SavedPart {
  std::string partition;
  SavedTarget target;
};
std::vector<SavedPart> saved_parts(const ContextFile& file);

// The one of `targets` (all of a partition) that serves best, and how.
struct TargetChoice {
  const SavedTarget* target = nullptr;
  SavedFit fit;
};
TargetChoice choose_target(const std::vector<SavedTarget>& targets, const Settings& settings);

}  // namespace tenon::kernels
