// cuDNN's graph API as a table of functions, loaded by name. Types and numbers are our own
// (names.h): no header of cuDNN is needed to build. What is absent, too old or half installed is a
// reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/support.h"

namespace tenon::cudnn {

using Status = int;  // cudnnStatus_t
inline constexpr Status kSuccess = 0;
using Handle = struct OpaqueCudnnHandle*;
using RawDescriptor = void*;  // cudnnBackendDescriptor_t

struct Functions {
#define TENON_CUDNN_FUNCTIONS(F)                                                              \
  F(create_handle, "cudnnCreate", (Handle * made))                                            \
  F(destroy_handle, "cudnnDestroy", (Handle handle))                                          \
  F(set_stream, "cudnnSetStream", (Handle handle, void* stream))                              \
  F(create, "cudnnBackendCreateDescriptor", (int kind, RawDescriptor* made))                  \
  F(destroy, "cudnnBackendDestroyDescriptor", (RawDescriptor descriptor))                     \
  F(set, "cudnnBackendSetAttribute",                                                          \
    (RawDescriptor descriptor, int attribute, int type, int64_t count, const void* elements)) \
  F(get, "cudnnBackendGetAttribute",                                                          \
    (RawDescriptor descriptor, int attribute, int type, int64_t most, int64_t* count,         \
     void* elements))                                                                         \
  F(finalize, "cudnnBackendFinalize", (RawDescriptor descriptor))                             \
  F(execute, "cudnnBackendExecute", (Handle handle, RawDescriptor plan, RawDescriptor variant_pack))

#define TENON_DECLARE(member, symbol, parameters) Status(*member) parameters = nullptr;
  TENON_CUDNN_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
  const char* (*error_text)(Status status) = nullptr;
  void (*last_error)(char* text, size_t bytes) = nullptr;  // of this thread

  int version = 0;  // as versions.h reads it
  std::string path;

  // "CUDNN_STATUS_NOT_SUPPORTED: …", in cuDNN's words.
  std::string words(Status status) const;
};

struct LibraryAnswer {
  Support support;
  Functions functions;  // where it is supported
};

// The first of these that is a whole cuDNN of 9.8 or newer.
LibraryAnswer load_library(std::span<const std::string> paths);
// The one of this process: TENON_CUDNN_LIBRARY names a file, else libcudnn.so.9 is looked for where
// kernels/device/vendor_library.h says. Loaded once, never closed.
const LibraryAnswer& library();

}  // namespace tenon::cudnn
