// Contexts without weights. The constants of the fused graph stay in the model's files of external
// data, each with its digests, and those that lie in no file are stored as they are. Who opens such
// a context lowers the graph once more: that packs the constants into the slots of the program that
// was saved, whose code is as it was.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/context_file.h"
#include "base/error.h"
#include "base/file_mapping.h"
#include "graph_partitioner/ir/graph.h"
#include "kernels/build_program.h"
#include "kernels/planning/candidate.h"
#include "kernels/running/program.h"
#include "kernels/weight_check.h"

namespace tenon::kernels {

// Bytes of the model in memory, and where they came from.
struct BytesOfFile {
  std::span<const std::byte> bytes;
  std::string file;  // relative to the model
  uint64_t offset = 0;
};

// Such a file is not there, or not what it was. Says what to do.
class WeightFileError : public UserError {
 public:
  using UserError::UserError;
};

// One of the model's files of external data, as a session reads it.
class WeightFile final : public CheckedData {
 public:
  // `name`: what the context calls it.
  WeightFile(const std::string& path, std::string name);
  const std::string& name() const { return name_; }
  // Throws WeightFileError where the file ends before.
  std::span<const std::byte> bytes(uint64_t offset, uint64_t count) const;

 protected:
  [[noreturn]] void fail_changed(std::string_view what) const override;

 private:
  const std::string name_;
  std::optional<FileMapping> mapping_;
};
// Finds the file that a context names. Throws WeightFileError where it is not there.
using FindWeightFile = std::function<std::shared_ptr<const WeightFile>(const std::string& name)>;

// What a context says of the weights of one program.
struct OutsideWeights {
  // What lowering depends on, beside the target.
  Precision precision{};
  int threads = 1;
  Digest lowering{};  // ProgramTexts::lowering
  std::vector<std::string> files;
  struct Weight {
    std::string content;  // digest of all of it, as the graph's text spells it
    size_t file = 0;
    uint64_t offset = 0, bytes = 0;
    std::vector<Digest> digests;  // one per kContextChunkBytes
  };
  std::vector<Weight> weights;
  // What sessions share: slots, and what their bytes are.
  struct Packed {
    size_t slot = 0;
    Digest content{};
  };
  std::vector<Packed> packed;

  std::string to_bytes() const;
  // Throws UserError for what to_bytes() does not write.
  static OutsideWeights from_bytes(std::string_view bytes);
};

// Writes constants that lie in none of the `files` to the context, and says where the others are.
OutsideWeights leave_outside(const Program& program, const Settings& settings,
                             std::span<const BytesOfFile> files, ContextWriter& context);

// A fused graph with its constants from where they lie. Outlives what is packed from it.
class OutsideGraph {
 public:
  // `text`: of the graph. Reads none of its constants. Throws UserError where one is not there.
  OutsideGraph(std::shared_ptr<const ContextFile> context, OutsideWeights weights,
               std::string_view text, const FindWeightFile& find);

  const OutsideWeights& weights() const { return weights_; }
  // Of all constants. `kept`: keeps this alive. `release`: WeightCheck's.
  WeightCheck check(std::shared_ptr<const void> kept, bool release) const;
  // `settings`: the target's.
  LoweredProgram lower(Settings settings);

 private:
  struct Constant {
    std::string name;  // for messages
    const CheckedData* source = nullptr;
    DataSection data;
  };
  std::span<const std::byte> find(const std::string& content, size_t bytes);
  Constant constant_of(const std::string& content) const;

  const std::shared_ptr<const ContextFile> context_;
  const OutsideWeights weights_;
  std::vector<std::shared_ptr<const WeightFile>> files_;
  std::map<std::string, Constant> constants_;  // that the graph has, by their digests in hex
  Settings settings_;
  ir::Graph graph_;
};

}  // namespace tenon::kernels
