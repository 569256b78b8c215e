// Small kernels for programmatic dependent launch, each over vectors of 64 f32 and one task.
#pragma once

#include <string>

#include "codegen/tile/text.h"

namespace tenon::test {

inline constexpr int64_t kVector = 64;

// y = x + 1. `pdl`: it launches dependents, and waits first; else it does neither.
inline codegen::Kernel add_one_kernel(bool pdl) {
  return codegen::parse(std::string("kernel @add_one(%x: buffer<f32>, %y: buffer<f32>) ") +
                        (pdl ? "pdl " : "") + R"({
  %0 = load %x[0] strides(1) : f32[64]
  %1 = constant 1.0 : f32[64]
  %2 = add %0, %1 : f32[64]
  store %y[0], %2 strides(1) : f32[64]
})");
}

// y = x + w, both fetched by copies. What is `constant` is fetched before the wait, what is `own`
// is written before it.
inline codegen::Kernel fetching_kernel(const std::string& x_is, const std::string& y_is = "") {
  return codegen::parse("kernel @fetch(%x: " + x_is +
                        " buffer<f32>, %w: constant buffer<f32>, %y: " + y_is + R"( buffer<f32>) {
  %0 = ring 2 : ring<f32[64]>
  %1 = ring 2 : ring<f32[64]>
  pipeline 2 0 to 1 produce(%2, %3) {
    bulk_load %0[%3], %x[0]
    bulk_load %1[%3], %w[0]
    yield
  } consume(%4, %5) {
    %6 = read %0[%5, _] : f32[64]
    %7 = read %1[%5, _] : f32[64]
    %8 = add %6, %7 : f32[64]
    store %y[0], %8 strides(1) : f32[64]
    yield
  }
})");
}

}  // namespace tenon::test
