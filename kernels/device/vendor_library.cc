#include "kernels/device/vendor_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace tenon::device {
namespace {

// Each ends in '/'; the first is empty: by name alone.
std::vector<std::string> folders() {
  std::vector<std::string> folders = {""};
  std::string_view rest = named_in_environment("TENON_LIBRARY_DIRS");
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    if (end > 0) folders.emplace_back(std::string(rest.substr(0, end)) + "/");
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  if (const std::string_view home = named_in_environment("CUDA_HOME"); !home.empty()) {
    folders.emplace_back(std::string(home) + "/lib64/");
  }
  folders.emplace_back("/usr/local/cuda/lib64/");
  return folders;
}

bool is_absent(const std::string& path) {
  std::error_code ignored;
  return path.find('/') != std::string::npos && !std::filesystem::exists(path, ignored);
}

}  // namespace

std::string_view named_in_environment(const char* variable) {
  const char* value = ::secure_getenv(variable);
  return value == nullptr ? "" : value;
}

void* VendorLibrary::address(const char* symbol) const { return dlsym(handle_, symbol); }

std::optional<int> VendorLibrary::version(const char* symbol) const {
  int (*tell)(int* version) = nullptr;
  int version = 0;
  if (!find(symbol, tell) || tell(&version) != 0) return std::nullopt;
  return version;
}

VendorAnswer open_vendor_library(std::span<const std::string> paths, const Objection& objection) {
  VendorAnswer answer;
  const auto note = [&](std::string_view reason) {
    answer.why += fmt::format("{}{}", answer.why.empty() ? "" : "; ", reason);
  };
  for (const std::string& path : paths) {
    // Alone, even an absent file is worth its reason.
    if (paths.size() > 1 && is_absent(path)) continue;
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      note(dlerror());
      continue;
    }
    VendorLibrary library(handle, path);
    const std::string refused = objection ? objection(library) : "";
    if (refused.empty()) return {std::move(library), {}};
    note(fmt::format("{} {}", path, refused));
  }
  return answer;
}

std::vector<std::string> vendor_library_paths(std::span<const std::string> names) {
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    for (const std::string& folder : folders()) paths.push_back(folder + name);
  }
  return paths;
}

}  // namespace tenon::device
