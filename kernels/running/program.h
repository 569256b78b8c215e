// A partition as the executable keeps it: compiled launches over numbered storage slots, with every
// size still an expression over the graph's symbols.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/hash.h"
#include "base/shape.h"
#include "codegen/compile.h"
#include "graph_partitioner/ir/graph.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/planning/candidate.h"
#include "kernels/planning/symbol_binding.h"
#include "kernels/running/executable.h"
#include "kernels/running/launch_dependencies.h"

namespace tenon::kernels {

// Where the bytes of a value are. Views share the slot of what they look at.
struct Slot {
  enum class Kind : uint8_t { kInput, kOutput, kConstant, kArena, kCounters } kind{};
  size_t index = 0;                  // of the graph's input or output
  std::shared_ptr<const void> data;  // kConstant; null: `pack` makes the bytes for a GPU
  Dim bytes;                         // of an input whose rank is not known: 0
  int first = 0, last = 0;           // kArena: launches during which the bytes matter
  std::string name = {};             // for messages
  PackPiece pack = {};               // kConstant, as of PackedConstant
  size_t unit = 1;
  DevicePacking on_device = {};
  // kConstant for a GPU: what it is made of and nobody else needs.
  std::vector<std::span<const std::byte>> sources = {};
  bool own = false;                    // kArena: only one launch ever touches the bytes
  std::optional<Digest> content = {};  // kConstant: what a checked file says of the bytes

  bool is_callers() const { return kind == Kind::kInput || kind == Kind::kOutput; }
};

struct CheckedIndices {
  size_t slot = 0;
  DType dtype{};
  Dim count;         // elements of the tensor
  IndexCheck check;  // its node: never empty
};

// A buffer of the caller's that a kernel's copies read: on a GPU it must begin at a multiple of 16
// bytes, and is copied to one that does where it does not.
struct FetchedBuffer {
  size_t parameter = 0;  // of the kernel
  Dim bytes;
};

// As ElidableCopy: slots, and how much memory each is.
struct SharedBuffers {
  size_t from = 0, to = 0;
  Dim from_bytes, to_bytes;
};

struct CompiledLaunch {
  LaunchKind kind = LaunchKind::kKernel;
  std::shared_ptr<const LibraryCall> call;             // of a library call or a collective
  Dim copy_bytes;                                      // of a copy
  codegen::HostFunction function = nullptr;            // on the host
  std::shared_ptr<const codegen::Kernel> interpreted;  // there, a GPU's kernel that is emulated
  size_t kernel = 0;            // index into Program::kernels and, on a GPU, Program::gpu_code
  int threads = 0;              // on a GPU: of a CTA
  int64_t shared_bytes = 0;     // on a GPU: of a CTA, at least
  std::vector<bool> is_buffer;  // per argument, in order
  std::vector<size_t> slots;
  std::vector<FetchedBuffer> fetched;
  std::vector<Dim> indices;
  Dim tasks, task_cost;
  bool after_all = false;  // begins when all before it have ended, though these launch dependents
  std::vector<CheckedIndices> checks;
  std::optional<SharedBuffers> elidable_copy;
  std::vector<std::pair<size_t, size_t>> in_place;  // as InPlace: slots of the caller's
  std::string node;                                 // for messages
};

// A value known from shapes alone (tenon::ShapeValue), written before the first launch.
struct ShapeWrite {
  size_t slot = 0;
  DType dtype{};
  std::vector<Dim> elements;
};

// What a program was made of, for who saves it.
struct ProgramTexts {
  std::string graph;  // fused, without its weights
  // Tuning records that it was chosen by, each in the form of a file.
  std::vector<std::string> used_records;
  struct Kernel {
    std::string text;  // codegen::print
    int threads = 0;   // of a CTA, as asked for
  };
  std::vector<Kernel> kernels;  // as Program::kernels
  ir::Digests constants = {};   // that the graph's text left out
  Digest lowering{};            // of slots and launches before any kernel was compiled
};

struct ProgramOutput {
  Shape shape;
  DType dtype{};
};

struct Program {
  SymbolBinding binding;
  std::vector<ProgramInput> inputs;
  std::vector<ProgramOutput> outputs;
  std::vector<Slot> slots;
  std::vector<size_t> output_slots;  // one per graph output
  std::vector<CompiledLaunch> launches;
  LaunchDependencies dependencies;           // one entry per launch
  std::vector<ir::Requirement> size_checks;  // each once
  std::vector<ShapeWrite> shape_writes;
  std::vector<std::shared_ptr<codegen::HostCode>> code;
  std::vector<std::shared_ptr<const codegen::GpuCode>> gpu_code;
  std::vector<KernelReport> kernels;
  std::vector<FusionReport> fusions;
  size_t weight_bytes = 0, packed_bytes = 0;
  std::vector<BuildPhase> phases;
  std::optional<ProgramTexts> texts;  // with Settings::keep_texts

  std::shared_ptr<const void> words;  // what verdicts refer to, where that is no candidate of ours
  // Whether the weights of these slots are what was saved, on all cores; else throws UserError.
  // Beside the upload. Empty: they come from nowhere that need be checked.
  std::function<void(const std::vector<bool>& slots)> check_weights;

  explicit Program(const ir::Graph& graph) : binding(graph) {}
  explicit Program(SymbolBinding binding) : binding(std::move(binding)) {}
};

}  // namespace tenon::kernels
