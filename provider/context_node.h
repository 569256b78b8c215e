// com.microsoft::EPContext, the node that stands for a compiled partition in a context model.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>
#include <string>
#include <vector>

#include "graph_partitioner/ir/graph.h"

namespace tenon::provider {

inline constexpr const char* kContextOp = "com.microsoft::EPContext";
// Its attribute that may hold gigabytes: read by read_context_node alone.
inline constexpr const char* kContextBytes = "ep_cache_context";

struct ContextNode {
  std::string name;  // of the node: as the fused node that it stands for
  std::vector<std::string> inputs, outputs;
  bool is_main = true;    // the first that names its file
  bool embedded = false;  // `context` is the bytes, else a path relative to the model
  std::string context;
  std::string partition;     // in the file
  std::string architecture;  // for people, as the next
  std::string notes;         // JSON
  // ContextFile::digest() of the only context that the node stands for, in hex: no other is opened.
  // It stands in the notes, for the operator has no attribute for it. Empty: there is none.
  std::string digest;
};
// Of the notes: under which key the digest stands.
inline constexpr const char* kDigestNote = "digest";

// The only node of a graph that was claimed for it; null: the graph is none of ours.
const OrtNode* context_node_of(const OrtGraph& graph);
ContextNode read_context_node(const OrtNode& node);
// For the runtime, which takes it over.
OrtNode* make_context_node(const ContextNode& node);

// Of an imported node with kContextOp: who wrote it. Empty: it does not say.
std::string source_of(const ir::Node& node);
// Whether the node may read such a tensor: the operator's schema leaves out 8-bit floats and
// everything below a byte.
bool may_read(DType dtype);

}  // namespace tenon::provider
