#include "provider/context_settings.h"

#include <fmt/format.h>
#include <onnxruntime_session_options_config_keys.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"

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

[[noreturn]] void refuse(const std::string& name, std::string_view reason) {
  throw UserError(fmt::format(
      "the context model names its data '{}', which {}: data stands in the model's folder or "
      "below, under a relative path; compile the model again",
      shown(name), reason));
}

}  // namespace

ContextSettings context_settings(const std::map<std::string, std::string>& entries) {
  ContextSettings settings;
  settings.enable = flag_of(entries, kOrtSessionOptionEpContextEnable);
  settings.model_path = text_of(entries, kOrtSessionOptionEpContextFilePath);
  settings.embed = flag_of(entries, kOrtSessionOptionEpContextEmbedMode);
  settings.name_prefix = text_of(entries, kOrtSessionOptionEpContextNodeNamePrefix);
  settings.compile_only = flag_of(entries, kOrtSessionOptionCompileOnly);
  settings.share = flag_of(entries, kOrtSessionOptionShareEpContexts);
  settings.stop_sharing = flag_of(entries, kOrtSessionOptionStopShareEpContexts);
  return settings;
}

std::string context_model_path(const ContextSettings& settings, const std::string& model_path) {
  if (!settings.model_path.empty()) return settings.model_path;
  if (model_path.empty()) return "";
  return model_path.substr(0, model_path.find_last_of('.')) + "_ctx.onnx";
}

std::string data_file_name(const std::string& context_model_path) {
  return fs::path(context_model_path).stem().string() + "_tenon.bin";
}

std::string data_file_path(const std::string& folder, const std::string& name) {
  const fs::path relative(name);
  if (name.empty() || name.find('\0') != std::string::npos) refuse(name, "is no file name");
  if (relative.is_absolute() || relative.has_root_path()) refuse(name, "is an absolute path");
  if (std::ranges::find(relative, fs::path("..")) != relative.end()) {
    refuse(name, "leaves the model's folder");
  }
  const fs::path base = folder.empty() ? fs::path(".") : fs::path(folder);
  std::error_code error;
  if (const auto status = fs::status(base / relative, error); !fs::exists(status)) {
    throw UserError(fmt::format(
        "the context model's data '{}' is not beside it, in '{}': keep both files together",
        shown(name), base.string()));
  }
  const fs::path real = fs::canonical(base / relative, error);
  const fs::path real_base = error ? fs::path() : fs::canonical(base, error);
  if (error) refuse(name, "cannot be followed");
  const auto [rest, _] = std::ranges::mismatch(real_base, real);
  if (rest != real_base.end()) refuse(name, "is a link that leaves the model's folder");
  return (base / relative).string();
}

}  // namespace tenon::provider
