// What a context keeps of a partition beside its program (kernels/saved_program.h): how the
// program's inputs and outputs are those of the node.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::provider {

struct SavedPartition {
  std::vector<uint64_t> inputs, outputs;  // the program's index -> the context node's
  std::vector<std::string> node_names;    // imported node id -> name, for the fusions' sources
};

// The section's name in a context file.
std::string section_of(std::string_view partition);
std::string to_bytes(const SavedPartition& partition);
// Throws UserError for bytes that are none.
SavedPartition parse_saved_partition(std::string_view bytes);
// Throws UserError where the partition speaks of more than the node has.
void check_fits(const SavedPartition& partition, size_t node_inputs, size_t node_outputs);

}  // namespace tenon::provider
