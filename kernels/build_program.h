// From a fused graph to what runs: selects, lowers, packs and compiles every node.
#pragma once

#include <memory>
#include <vector>

#include "base/hash.h"
#include "codegen/compile.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/device_executable.h"
#include "kernels/running/executable.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

// `fused`: what fuse() made of the partition's graph. Throws UserError naming a node that nobody
// can run, which a prior supports() would have told.
Program make_program(const ir::Graph& fused, const Settings& settings,
                     const codegen::StageSink& sink = {});

// The same without compiling: what a saved program gets its constants from, in the same slots.
struct LoweredProgram {
  std::vector<Slot> slots;
  Digest content{};  // as ProgramTexts::lowering
};
LoweredProgram lower_program(const ir::Graph& fused, const Settings& settings);

// The program as an executable on this machine's processor.
std::unique_ptr<Executable> build_on_host(const ir::Graph& fused, const Settings& settings,
                                          const codegen::StageSink& sink = {});
// On a GPU. `settings.gpu` describes `device`; null: everything is compiled, and run() says that
// the GPU is absent.
std::unique_ptr<Executable> build_on_device(const ir::Graph& fused, const Settings& settings,
                                            std::shared_ptr<device::Device> device,
                                            const DeviceRunOptions& options,
                                            const codegen::StageSink& sink = {});

}  // namespace tenon::kernels
