// The smallest kernel that two numbers tell apart.
#pragma once

#include <string>

#include "codegen/tile/text.h"

namespace tenon::test {

inline codegen::Kernel add_to_all(const std::string& name, const std::string& number) {
  return codegen::parse("kernel @" + name + R"((%x: buffer<f32>) {
  %0 = load %x[0] strides(1) : f32[64]
  %1 = constant )" + number +
                        R"( : f32[64]
  %2 = add %0, %1 : f32[64]
  store %x[0], %2 strides(1) : f32[64]
})");
}

}  // namespace tenon::test
