// A vendor's library, opened by name at run time: libcuda and nvJitLink, and whatever else comes
// with an NVIDIA installation. What is absent, too old or lacks a function is a reason, never a
// link error. A library that was opened stays open: nothing of the vendor's runs at exit through
// us.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::device {

class VendorLibrary {
 public:
  VendorLibrary(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Whether the library has this function; null in `function` if not.
  template <typename Function>
  bool find(const char* symbol, Function& function) const {
    function = reinterpret_cast<Function>(address(symbol));
    return function != nullptr;
  }

  // By a function `int symbol(int* version)` that answers 0, as cuDriverGetVersion does; nothing:
  // it has none or does not say.
  std::optional<int> version(const char* symbol) const;

 private:
  void* address(const char* symbol) const;

  void* handle_;
  std::string path_;
};

struct VendorAnswer {
  std::optional<VendorLibrary> library;
  std::string why;  // each thing that was tried and why it does not do, where nothing did
};

// Why a library that opened does not do; empty: it does.
using Objection = std::function<std::string(const VendorLibrary&)>;

// The first of `paths` that opens and has nothing against it. A name without a folder is looked up
// as the system does; of those with one, which are not there is not worth a word.
VendorAnswer open_vendor_library(std::span<const std::string> paths,
                                 const Objection& objection = {});

// What the environment names there; empty: nothing. Also of a process with more rights than whoever
// started it (set-user-ID, file capabilities), where that one must not say what code is loaded.
std::string_view named_in_environment(const char* variable);

// Where a library may lie, for each name in turn: as the system finds it, in the folders of
// TENON_LIBRARY_DIRS (separated by ':'; the Python package names site-packages/nvidia/*/lib there),
// in $CUDA_HOME/lib64 and in /usr/local/cuda/lib64.
std::vector<std::string> vendor_library_paths(std::span<const std::string> names);

}  // namespace tenon::device
