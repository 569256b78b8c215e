// From a graph to an execution plan of cuDNN's: its heuristics name engines, and the first that may
// be used and can be built is taken.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/support.h"
#include "codegen/target.h"
#include "kernels/cudnn/descriptor.h"
#include "kernels/cudnn/graph.h"

namespace tenon::cudnn {

// One of the engines that may be used, by its place among them, best first, and cuDNN's number for
// it. Where a GPU's list differs from the one that was told, the number counts.
struct EngineChoice {
  int64_t place = 0, engine = 0;
  bool operator==(const EngineChoice&) const = default;
};

// Which engines may be used. Never one whose sums are rounded more than f32's are, that transforms
// the problem (Winograd, FFT) or whose bits differ from run to run.
struct Rules {
  bool tensor_cores = true;  // f32 on them is TF32
  bool only_fast = false;    // what the fallback engines take is refused
  int64_t workspace = std::numeric_limits<int64_t>::max();  // bytes that there are
  // Else the first engine that cuDNN's own check lets pass is the answer, and no code is made:
  // cuDNN compiles attention when its plan is built.
  bool builds = true;
  std::optional<EngineChoice> wanted = {};  // before the others
  std::vector<EngineChoice> failed = {};    // when they ran
};

// Where the plan is to run: the GPU of a handle, or one that is described.
struct Place {
  Handle handle = nullptr;
  const codegen::GpuTarget* described = nullptr;
};

// One number that a plan reads from host memory when its work is put on a stream.
struct PlanConstant {
  int64_t id = 0;  // of its tensor
  alignas(8) std::array<std::byte, 8> bytes{};
};

inline constexpr size_t kMostEngines = 5;  // that a plan tells of

struct ExecutionPlan {
  std::vector<Descriptor> parts;  // that it refers to
  std::optional<Descriptor> plan;
  EngineChoice chosen;
  int64_t workspace = 0;
  std::vector<int64_t> engines;  // the first that may be used, as cuDNN ranks them
  size_t buffers = 0;            // tensors in memory, numbered from 1
  std::vector<PlanConstant> constants;
};

struct PlanAnswer {
  std::optional<ExecutionPlan> plan;
  Support support;
};

PlanAnswer make_plan(const Functions& functions, const Place& place, const Graph& graph,
                     const Rules& rules);

// Puts the plan's work on the handle's stream: one address per tensor in memory, then the
// workspace.
void execute(const Functions& functions, Handle handle, const ExecutionPlan& plan,
             std::span<void* const> buffers);

}  // namespace tenon::cudnn
