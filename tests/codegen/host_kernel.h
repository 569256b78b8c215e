// Compiles one kernel for this machine and calls it: what most tests of codegen/ need.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compile.h"
#include "codegen/target.h"
#include "codegen/tile/builder.h"

namespace tenon::codegen {

class HostKernel {
 public:
  explicit HostKernel(const Kernel& kernel, const HostTarget& target = detect_host())
      : code_(compile_host(std::span(&kernel, 1), target)), function_(code_->function(kernel.name)) {
  }

  void operator()(const std::vector<void*>& buffers, const std::vector<int64_t>& indices = {},
                  int64_t tasks = 1) const {
    function_(buffers.data(), indices.data(), 0, tasks);
  }

 private:
  std::shared_ptr<HostCode> code_;
  HostFunction function_;
};

}  // namespace tenon::codegen
