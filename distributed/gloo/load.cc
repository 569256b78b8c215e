#include "distributed/gloo/load.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <span>
#include <vector>

#include "kernels/device/vendor_library.h"

namespace tenon::distributed {
namespace {

constexpr const char* kName = "libtenon_gloo.so";
constexpr const char* kTable = "tenon_gloo_table";

std::string beside_this_code() {
  Dl_info object{};
  if (dladdr(reinterpret_cast<const void*>(&gloo_library), &object) == 0) return kName;
  return (std::filesystem::path(object.dli_fname).parent_path() / kName).string();
}

const tenon_gloo_functions* table_of(const device::VendorLibrary& library) {
  decltype(&tenon_gloo_table) table = nullptr;
  return library.find(kTable, table) ? table(TENON_GLOO_TABLE) : nullptr;
}

GlooLibrary open_first(std::span<const std::string> paths) {
  const device::VendorAnswer answer =
      device::open_vendor_library(paths, [](const device::VendorLibrary& library) -> std::string {
        return table_of(library) != nullptr ? "" : "was built for another version of Tenon";
      });
  if (answer.library) return {table_of(*answer.library), ""};
  return {nullptr, fmt::format("Gloo cannot be used: {}; it needs Gloo itself (Debian: apt install "
                               "libgloo0), and where Tenon is built its headers (libgloo-dev)",
                               answer.why)};
}

}  // namespace

const GlooLibrary& gloo_library() {
  static const GlooLibrary library = [] {
    std::vector<std::string> paths{beside_this_code()};
    const std::array names{std::string(kName)};
    for (std::string& path : device::vendor_library_paths(names)) paths.push_back(std::move(path));
    return open_first(paths);
  }();
  return library;
}

GlooLibrary open_gloo_library(const std::string& path) { return open_first(std::array{path}); }

}  // namespace tenon::distributed
