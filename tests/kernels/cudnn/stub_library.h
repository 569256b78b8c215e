// The stub of cuDNN as tests see it: cuDNN's functions, and the stub's own.
#pragma once

#include <string>

#include "kernels/cudnn/library.h"
#include "tests/kernels/cudnn/stub/control.h"

namespace tenon::cudnn {

struct StubLibrary {
  Functions functions;
  StubSetVersion set_version = nullptr;
  StubFail fail = nullptr;
  StubPending pending = nullptr;
  StubLive live = nullptr;
  StubCalls calls = nullptr;
  StubSetWorkspace set_workspace = nullptr;
  StubLastEngine last_engine = nullptr;
};

// As if it were this version; its workspace is 64 bytes again.
StubLibrary stub_library(int version = 91900);
std::string stub_path();

}  // namespace tenon::cudnn
