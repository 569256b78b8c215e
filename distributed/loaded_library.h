// A vendor's library that ranks exchange tensors through, as a table of functions that was loaded
// by name, or the reason why there is none.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/support.h"
#include "kernels/device/vendor_library.h"

namespace tenon::distributed {

template <typename Functions>
struct LoadedLibrary {
  Support support;
  Functions functions;  // where it is supported
};

// How people call it, what pip installs, the variable that names a file, and the file's usual name.
struct LibraryNames {
  const char *title, *package, *variable, *file;
};

// Why it cannot be used and what to do about it.
Support no_library(const LibraryNames& names, const std::string& why);

// The file that the variable names, else where vendor_library.h looks for it.
std::vector<std::string> library_paths(const LibraryNames& names);

// The first of these files that `fill` has nothing against: it takes what it needs and answers with
// its objection, or nothing.
template <typename Functions>
LoadedLibrary<Functions> load_library(const LibraryNames& names, std::span<const std::string> paths,
                                      std::string (*fill)(const device::VendorLibrary&,
                                                          Functions&)) {
  LoadedLibrary<Functions> loaded;
  const device::VendorAnswer opened = device::open_vendor_library(
      paths, [&](const device::VendorLibrary& library) { return fill(library, loaded.functions); });
  if (!opened.library) loaded.support = no_library(names, opened.why);
  return loaded;
}

}  // namespace tenon::distributed
