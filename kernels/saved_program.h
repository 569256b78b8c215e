// A compiled partition in a context file (base/context_file.h), and back without fusing, lowering,
// planning or packing; where weights are left outside, without fusing and compiling. Calls of cuDNN
// are stored as problems: their plans are made where they run, by the version that is there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/context_file.h"
#include "kernels/outside_weights.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

// kNone: the program is only to be looked at.
enum class SavedWeights : uint8_t { kNone, kInside, kOutside };

struct SaveOptions {
  SavedWeights weights = SavedWeights::kInside;
  // kOutside: of constants that may stay there. Others are stored as they are in the model.
  std::span<const BytesOfFile> files = {};
};

// Adds partition `name` as it was compiled for one target to the file: the program, the text of
// each kernel, on a GPU its PTX and (where nvJitLink is installed) machine code, and the weights or
// where they are.
// `settings`: those that the program was made with, `keep_texts` among them. Several targets:
// once each under the same name, and equal weights are written once. Before anything lets go of the
// graph's weights. Throws UserError naming a node that cannot be saved.
void save_program(const Program& program, std::string_view name, const Settings& settings,
                  ContextWriter& file, const SaveOptions& options = {});

struct OpenedProgram {
  Program program;
  // Empty: runs as it was stored. Else why kernels were compiled again from their texts, a sentence
  // without its period. Host kernels always are, and that is not told.
  std::string recompiled;
  // What the program's weights are packed from until there is an executable; null: nothing.
  std::shared_ptr<const void> packed_from = {};
};

// The program for the target of `settings`. Its weights are read from `file`, which it keeps, or
// from files that `find` finds and packed anew. Throws UserError that says what the file has and
// what to do.
OpenedProgram open_program(const std::shared_ptr<const ContextFile>& file, std::string_view name,
                           const Settings& settings, const FindWeightFile& find = {});

// What a file holds, for people.
struct SavedProgram {
  std::string name;
  std::string target;     // "sm_90a", "x86_64"
  std::string describes;  // the target in words
  size_t launches = 0, kernels = 0;
  size_t machine_code = 0;  // kernels that have it
  uint64_t weight_bytes = 0;
  SavedWeights weights{};
  std::string cudnn;  // version that it was made with, where it calls cuDNN
  struct File {
    std::string name;    // relative to the model
    uint64_t bytes = 0;  // of weights in it, and where the last one ends
    uint64_t end = 0;
  };
  std::vector<File> files;  // that its weights are in
  std::string graph;        // the fused graph's text
};
std::vector<SavedProgram> saved_programs(const ContextFile& file);

// How a partition would open here, without opening it.
struct SavedFit {
  enum class Kind { kAsStored, kCompiledAgain, kNot } kind{};
  std::string reason;  // of the last two
};
SavedFit fit_of(const ContextFile& file, std::string_view name, const Settings& settings);
// Whether programs with calls of cuDNN open with these settings, whose GPU need not be here; else
// why not and what to do.
Support opens_cudnn_calls(const Settings& settings);

}  // namespace tenon::kernels
