#include "codegen/gpu_support.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace tenon::codegen {
namespace {

// Functions that the host takes from libm where they are wanted in f64.
constexpr std::array kFromLibm = {Fn::kExp,   Fn::kExp2,  Fn::kLog,  Fn::kLog2, Fn::kSin,
                                  Fn::kCos,   Fn::kTan,   Fn::kTanh, Fn::kErf,  Fn::kAsin,
                                  Fn::kAcos,  Fn::kAtan,  Fn::kSinh, Fn::kCosh, Fn::kAsinh,
                                  Fn::kAcosh, Fn::kAtanh, Fn::kPow,  Fn::kAtan2};

Support check(const Kernel& kernel, const Region& region) {
  for (const Operation& operation : region.operations) {
    for (const Region& inner : operation.regions) {
      if (Support answer = check(kernel, inner); !answer) return answer;
    }
    if (operation.operands.empty()) continue;
    const DType type = kernel.types[operation.operands[0]].dtype;
    if (Support answer = supports_gpu(operation.fn, type); !answer) return answer;
  }
  return Support::yes();
}

}  // namespace

Support supports_gpu(Fn fn, DType type) {
  if (type != DType::kF64 || std::ranges::find(kFromLibm, fn) == kFromLibm.end()) {
    return Support::yes();
  }
  return Support::no(fmt::format("{} of f64 has no code on a GPU", name(fn)));
}

Support supports_gpu(const Kernel& kernel) { return check(kernel, kernel.body); }

}  // namespace tenon::codegen
