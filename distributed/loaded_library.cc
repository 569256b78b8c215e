#include "distributed/loaded_library.h"

#include <fmt/format.h>

namespace tenon::distributed {

Support no_library(const LibraryNames& names, const std::string& why) {
  return Support::no(fmt::format("{} cannot be used ({}). pip install {}, or name a library in {}",
                                 names.title, why, names.package, names.variable));
}

std::vector<std::string> library_paths(const LibraryNames& names) {
  const std::string named(device::named_in_environment(names.variable));
  if (!named.empty()) return {named};
  return device::vendor_library_paths(std::vector<std::string>{names.file});
}

}  // namespace tenon::distributed
