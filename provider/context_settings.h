// What a session's configuration says about context models: the runtime's own keys, not options of
// ours.
#pragma once

#include <map>
#include <string>

#include "base/hash.h"

namespace tenon::provider {

struct ContextSettings {
  bool enable = false;        // ep.context_enable: write a context model
  std::string model_path;     // ep.context_file_path: of the context model; empty: by the rule
  bool embed = false;         // ep.context_embed_mode: bytes inside of the model
  std::string name_prefix;    // ep.context_node_name_prefix
  bool compile_only = false;  // session.compile_only: the session never runs
  // Weights stay in the model's files of external data: ep.enable_weightless_ep_context_nodes,
  // ep.enable_weightless or ep.enable_weightless_mode=1, whichever the runtime's version has.
  bool weights_outside = false;
  // session.model_external_initializers_file_folder_path: of a model that comes from memory
  std::string weight_folder;
  bool share = false;         // ep.share_ep_contexts: weights, with other such sessions
  bool stop_sharing = false;  // ep.stop_share_ep_contexts: this session is the last
};

// From the entries of a session's configuration. Throws UserError where a value is none that the
// runtime knows.
ContextSettings context_settings(const std::map<std::string, std::string>& entries);

// Where the runtime writes the context model of the model at `model_path` (empty: from memory).
// Empty where nothing tells.
std::string context_model_path(const ContextSettings& settings, const std::string& model_path);

// "ctx_tenon_0123456789abcdef.bin" for the context model "folder/ctx.onnx", beside which it stands:
// with the first digits of its digest, so that no model ever finds the data of another compilation
// under the name of its own.
std::string data_file_name(const std::string& context_model_path, const Digest& digest);

// The file that a context model in `folder` names. Throws UserError for whatever does not stay
// below the folder: absolute paths, "..", links that lead out.
std::string data_file_path(const std::string& folder, const std::string& name);
// The same for a weight file that a context without weights needs. Throws WeightFileError.
std::string weight_file_path(const std::string& folder, const std::string& name);

}  // namespace tenon::provider
