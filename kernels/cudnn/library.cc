#include "kernels/cudnn/library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include "kernels/cudnn/versions.h"
#include "kernels/device/vendor_library.h"

namespace tenon::cudnn {
namespace {

// libcudnn.so.9 opens these when it first needs them, and ends the process where it cannot.
constexpr std::array<std::string_view, 6> kParts = {
    "graph", "ops", "cnn", "heuristic", "engines_precompiled", "engines_runtime_compiled"};

// Empty: every part lies beside the library.
std::string missing_part(const void* function) {
  Dl_info found{};
  if (dladdr(function, &found) == 0 || found.dli_fname == nullptr) return {};
  const std::filesystem::path folder = std::filesystem::path(found.dli_fname).parent_path();
  for (const std::string_view part : kParts) {
    const std::string name = fmt::format("libcudnn_{}.so.9", part);
    std::error_code ignored;
    if (!std::filesystem::exists(folder / name, ignored)) {
      return fmt::format("is half installed: {} is not beside it", name);
    }
  }
  return {};
}

// Empty: it will do.
std::string fill(const device::VendorLibrary& library, Functions& functions) {
  functions = {};
  functions.path = library.path();
  size_t (*tell)() = nullptr;
  if (!library.find("cudnnGetVersion", tell)) return "has no function cudnnGetVersion";
  functions.version = static_cast<int>(tell());
  if (functions.version < kOldest || functions.version >= kNewest) {
    return fmt::format("is cuDNN {}, 9.8 or a newer 9 is needed", version_text(functions.version));
  }
#define TENON_FIND(member, symbol, parameters) \
  if (!library.find(symbol, functions.member)) return "has no function " symbol;
  TENON_CUDNN_FUNCTIONS(TENON_FIND)
  TENON_FIND(error_text, "cudnnGetErrorString", ())
  TENON_FIND(last_error, "cudnnGetLastErrorString", ())
#undef TENON_FIND
  return missing_part(reinterpret_cast<const void*>(tell));
}

}  // namespace

std::string Functions::words(Status status) const {
  std::array<char, 1024> detail{};
  last_error(detail.data(), detail.size() - 1);
  const char* kind = error_text(status);
  return fmt::format("{}{}{}", kind == nullptr ? "an error without a name" : kind,
                     detail[0] == '\0' ? "" : ": ", detail.data());
}

LibraryAnswer load_library(std::span<const std::string> paths) {
  LibraryAnswer answer;
  const device::VendorAnswer opened = device::open_vendor_library(
      paths, [&](const device::VendorLibrary& library) { return fill(library, answer.functions); });
  if (!opened.library) {
    answer.support = Support::no(
        fmt::format("cuDNN cannot be used ({}). pip install nvidia-cudnn-cu13", opened.why));
  }
  return answer;
}

const LibraryAnswer& library() {
  static const LibraryAnswer& answer = *new LibraryAnswer([] {
    const std::string named(device::named_in_environment("TENON_CUDNN_LIBRARY"));
    if (!named.empty()) return load_library(std::vector<std::string>{named});
    return load_library(device::vendor_library_paths(std::vector<std::string>{"libcudnn.so.9"}));
  }());
  return answer;
}

}  // namespace tenon::cudnn
