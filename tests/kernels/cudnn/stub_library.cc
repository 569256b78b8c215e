#include "tests/kernels/cudnn/stub_library.h"

#include <dlfcn.h>

#include <stdexcept>
#include <vector>

namespace tenon::cudnn {
namespace {

template <typename Function>
void find(void* handle, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, symbol));
  if (function == nullptr) throw std::runtime_error(symbol);
}

}  // namespace

std::string stub_path() { return TENON_STUB_CUDNN; }

StubLibrary stub_library(int version) {
  void* handle = dlopen(TENON_STUB_CUDNN, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  StubLibrary stub;
  find(handle, "stubCudnnSetVersion", stub.set_version);
  find(handle, "stubCudnnFail", stub.fail);
  find(handle, "stubCudnnPending", stub.pending);
  find(handle, "stubCudnnLive", stub.live);
  find(handle, "stubCudnnCalls", stub.calls);
  find(handle, "stubCudnnSetWorkspace", stub.set_workspace);
  find(handle, "stubCudnnLastEngine", stub.last_engine);
  stub.set_version(version);
  stub.set_workspace(64);
  LibraryAnswer answer = load_library(std::vector<std::string>{TENON_STUB_CUDNN});
  stub.functions = answer.functions;
  return stub;
}

}  // namespace tenon::cudnn
