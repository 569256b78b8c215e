// What a session's configuration says about context models: the runtime's own keys, not options of
// ours.
#pragma once

#include <map>
#include <string>

namespace tenon::provider {

struct ContextSettings {
  bool enable = false;        // ep.context_enable: write a context model
  std::string model_path;     // ep.context_file_path: of the context model; empty: by the rule
  bool embed = false;         // ep.context_embed_mode: bytes inside of the model
  std::string name_prefix;    // ep.context_node_name_prefix
  bool compile_only = false;  // session.compile_only: the session never runs
  bool share = false;         // ep.share_ep_contexts: weights, with other such sessions
  bool stop_sharing = false;  // ep.stop_share_ep_contexts: this session is the last
};

// From the entries of a session's configuration. Throws UserError where a value is none that the
// runtime knows.
ContextSettings context_settings(const std::map<std::string, std::string>& entries);

// Where the runtime writes the context model of the model at `model_path` (empty: from memory).
// Empty where nothing tells.
std::string context_model_path(const ContextSettings& settings, const std::string& model_path);

// "ctx_tenon.bin" for the context model "folder/ctx.onnx": stands beside it.
std::string data_file_name(const std::string& context_model_path);

// The file that a context model in `folder` names. Throws UserError for whatever does not stay
// below the folder: absolute paths, "..", links that lead out.
std::string data_file_path(const std::string& folder, const std::string& name);

}  // namespace tenon::provider
