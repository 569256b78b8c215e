#include "provider/context_settings.h"

#include <fmt/format.h>
#include <onnxruntime_session_options_config_keys.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "kernels/outside_weights.h"

namespace tenon::provider {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::map<std::string, std::string>& entries, const char* key) {
  const auto found = entries.find(key);
  return found == entries.end() ? "" : found->second;
}

bool flag_of(const std::map<std::string, std::string>& entries, const char* key) {
  const std::string value = text_of(entries, key);
  if (!value.empty() && value != "0" && value != "1") {
    throw UserError(fmt::format("the session's {}='{}' is not valid; it takes: 0 | 1", key, value));
  }
  return value == "1";
}

// As a message can show it.
std::string shown(const std::string& name) {
  std::string text = name.substr(0, 200);
  std::ranges::replace_if(
      text, [](unsigned char c) { return c < ' '; }, '?');
  return text;
}

// Newer than the headers.
constexpr const char* kEnableWeightless = "ep.enable_weightless";           // 1.29
constexpr const char* kEnableWeightlessMode = "ep.enable_weightless_mode";  // after 1.31.1

// Of its modes only "external data stays outside" can be had: what lies in the model file is
// stored.
bool asks_for_outside(const std::map<std::string, std::string>& entries) {
  const std::string mode = text_of(entries, kEnableWeightlessMode);
  if (mode == "2") {
    throw UserError(fmt::format(
        "the session's {}=2 (all weights stay outside) is more than Tenon can: weights in the "
        "model file itself are stored in the context; take 1 (external data stays outside)",
        kEnableWeightlessMode));
  }
  const bool by_mode = flag_of(entries, kEnableWeightlessMode);
  const bool by_key = flag_of(entries, kEnableWeightless);
  const bool by_old_key = flag_of(entries, kOrtSessionOptionEpEnableWeightlessEpContextNodes);
  return mode.empty() ? by_key || by_old_key : by_mode;
}

// Why a path is none that a context model may name; empty: it is one.
std::string fault_of(const std::string& name) {
  const fs::path relative(name);
  if (name.empty() || name.find('\0') != std::string::npos) return "is no file name";
  if (relative.is_absolute() || relative.has_root_path()) return "is an absolute path";
  if (std::ranges::find(relative, fs::path("..")) != relative.end()) {
    return "leaves the model's folder";
  }
  return "";
}

// The same of a file that is there: links count.
std::string fault_of_links(const fs::path& base, const std::string& name) {
  std::error_code error;
  const fs::path real = fs::canonical(base / name, error);
  const fs::path real_base = error ? fs::path() : fs::canonical(base, error);
  if (error) return "cannot be followed";
  const auto [rest, _] = std::ranges::mismatch(real_base, real);
  return rest != real_base.end() ? "is a link that leaves the model's folder" : "";
}

struct FoundFile {
  std::string path;   // empty: it is not there
  std::string fault;  // of its name; empty: none
};

FoundFile find_file(const fs::path& base, const std::string& name) {
  if (std::string fault = fault_of(name); !fault.empty()) return {"", std::move(fault)};
  std::error_code error;
  if (!fs::exists(fs::status(base / name, error))) return {};
  return {(base / name).string(), fault_of_links(base, name)};
}

fs::path or_here(const std::string& folder) { return folder.empty() ? "." : folder; }

}  // namespace

ContextSettings context_settings(const std::map<std::string, std::string>& entries) {
  ContextSettings settings;
  settings.enable = flag_of(entries, kOrtSessionOptionEpContextEnable);
  settings.model_path = text_of(entries, kOrtSessionOptionEpContextFilePath);
  settings.embed = flag_of(entries, kOrtSessionOptionEpContextEmbedMode);
  settings.name_prefix = text_of(entries, kOrtSessionOptionEpContextNodeNamePrefix);
  settings.compile_only = flag_of(entries, kOrtSessionOptionCompileOnly);
  settings.weights_outside = asks_for_outside(entries);
  settings.weight_folder =
      text_of(entries, kOrtSessionOptionsModelExternalInitializersFileFolderPath);
  settings.share = flag_of(entries, kOrtSessionOptionShareEpContexts);
  settings.stop_sharing = flag_of(entries, kOrtSessionOptionStopShareEpContexts);
  return settings;
}

std::string context_model_path(const ContextSettings& settings, const std::string& model_path) {
  if (!settings.model_path.empty()) return settings.model_path;
  if (model_path.empty()) return "";
  return model_path.substr(0, model_path.find_last_of('.')) + "_ctx.onnx";
}

std::string data_file_name(const std::string& context_model_path, const Digest& digest) {
  constexpr size_t kDigits = 16;
  return fmt::format("{}_tenon_{}.bin", fs::path(context_model_path).stem().string(),
                     hex(digest).substr(0, kDigits));
}

std::string data_file_path(const std::string& folder, const std::string& name) {
  const fs::path base = or_here(folder);
  const FoundFile found = find_file(base, name);
  if (!found.fault.empty()) {
    throw UserError(fmt::format(
        "the context model names its data '{}', which {}: data stands in the model's folder or "
        "below, under a relative path; compile the model again",
        shown(name), found.fault));
  }
  if (found.path.empty()) {
    throw UserError(fmt::format(
        "the context model's data '{}' is not beside it, in '{}': keep both files together",
        shown(name), base.string()));
  }
  return found.path;
}

std::string weight_file_path(const std::string& folder, const std::string& name) {
  const fs::path base = or_here(folder);
  const FoundFile found = find_file(base, name);
  if (!found.fault.empty()) {
    throw kernels::WeightFileError(fmt::format(
        "weight file '{}' {}: weights that a context leaves outside stand in the model's folder or "
        "below, under a relative path without links; move them there and compile the model again, "
        "or compile it with its weights",
        shown(name), found.fault));
  }
  if (found.path.empty()) {
    throw kernels::WeightFileError(fmt::format(
        "weight file '{}' is not there, in '{}': the context model was compiled without its "
        "weights; put the file there that the model was compiled with",
        shown(name), base.string()));
  }
  return found.path;
}

}  // namespace tenon::provider
