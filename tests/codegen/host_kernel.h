// Compiles kernels for this machine and calls them: what most tests of codegen/ need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "codegen/compile.h"
#include "codegen/target.h"
#include "codegen/tile/builder.h"

namespace tenon::codegen {

class HostKernel {
 public:
  explicit HostKernel(const Kernel& kernel, const HostTarget& target = detect_host())
      : code_(compile_host(std::span(&kernel, 1), target)),
        function_(code_->function(kernel.name)) {}

  void operator()(const std::vector<void*>& buffers, const std::vector<int64_t>& indices = {},
                  int64_t tasks = 1) const {
    function_(buffers.data(), indices.data(), 0, tasks);
  }

 private:
  std::shared_ptr<HostCode> code_;
  HostFunction function_;
};

inline bool runs_here(const HostTarget& target) {
  const HostTarget here = detect_host();
  return target.arch == here.arch && target.vector_bits <= here.vector_bits &&
         std::ranges::all_of(target.features, [&](const auto& name) { return here.has(name); });
}

// TENON_TEST_LEVEL names the one level to test: under an emulator, which has what this machine has
// not and is slow. Null: all.
inline const char* only_level() { return std::getenv("TENON_TEST_LEVEL"); }
// Why there is no emulator for it; null where there is one.
inline const char* no_emulator() { return std::getenv("TENON_TEST_NO_EMULATOR"); }

// Every level of instructions that this machine can run, so that no path goes untested.
inline std::vector<HostTarget> runnable_targets() {
  if (const char* level = only_level()) {
    const HostTarget target = host_target(level);
    if (!runs_here(target)) throw UserError(std::string("this machine cannot run ") + level);
    return {target};
  }
  std::vector<HostTarget> out{detect_host()};
  for (const std::string& name : host_target_names()) {
    HostTarget target = host_target(name);
    if (runs_here(target) && target.features != out[0].features) out.push_back(target);
  }
  return out;
}

// Applies `compute` to tiles of `lanes` elements of the inputs, whose last tile is masked.
inline Kernel map_kernel(const std::vector<DType>& inputs, DType output,
                         const std::function<ValueId(Builder&, std::vector<ValueId>)>& compute,
                         int lanes = 16) {
  Builder b("map");
  std::vector<ValueId> buffers;
  for (size_t i = 0; i < inputs.size(); ++i) {
    buffers.push_back(b.buffer("x" + std::to_string(i), inputs[i]));
  }
  ValueId y = b.buffer("y", output), n = b.index_parameter("n");
  ValueId at = b.mul(b.task(), b.index(lanes)), left = b.sub(n, at);
  std::vector<ValueId> tiles;
  for (ValueId buffer : buffers) tiles.push_back(b.load({buffer, at, {}, {left}}, {lanes}));
  b.store({y, at, {}, {left}}, compute(b, tiles));
  return b.finish();
}

// Runs a map_kernel over as many elements as `out` has.
template <typename Out>
void run_map(const HostKernel& kernel, const std::vector<const void*>& inputs,
             std::vector<Out>& out, int lanes = 16) {
  std::vector<void*> buffers;
  for (const void* input : inputs) buffers.push_back(const_cast<void*>(input));
  buffers.push_back(out.data());
  auto n = static_cast<int64_t>(out.size());
  kernel(buffers, {n}, (n + lanes - 1) / lanes);
}

}  // namespace tenon::codegen
