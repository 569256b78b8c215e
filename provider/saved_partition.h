// What a context keeps of a partition beside its program (kernels/saved_program.h): how the
// program's inputs and outputs are those of the node, and what the model said of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "base/support.h"

namespace tenon::provider {

// A tensor as a model declares it.
struct DeclaredTensor {
  static constexpr int64_t kOpen = -1;

  DType dtype{};
  std::optional<std::vector<int64_t>> dims = {};  // nullopt: not even the rank is told

  static DeclaredTensor of(DType dtype, const std::optional<Shape>& shape);
};

// A value of the program at the context node.
struct SavedValue {
  uint64_t index = 0;  // of the node's inputs or outputs
  DeclaredTensor declared;
};

struct SavedPartition {
  std::vector<SavedValue> inputs, outputs;  // in the program's order
  std::vector<std::string> node_names;      // imported node id -> name, for the fusions' sources
};

// The section's name in a context file.
std::string section_of(std::string_view partition);
std::string to_bytes(const SavedPartition& partition);
// Throws UserError for bytes that are none.
SavedPartition parse_saved_partition(std::string_view bytes);
// Throws UserError where the partition speaks of more than the node has.
void check_fits(const SavedPartition& partition, size_t node_inputs, size_t node_outputs);

// Whether a tensor that is `now` declared so may stand where it was declared as `saved`: the type
// is the same, and so is the shape as far as both tell it.
Support is_declared_as(const DeclaredTensor& saved, const DeclaredTensor& now);
// Whether memory of the type holds what the program means by `dtype`: models declare codes of FP8
// as bytes.
bool holds(DType declared, DType dtype);

}  // namespace tenon::provider
