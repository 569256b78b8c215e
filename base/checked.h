// 64-bit size arithmetic on values that come from a model: overflow is the model's fault.
#pragma once

#include <cstdint>

#include "base/error.h"

namespace tenon {

inline int64_t checked_mul(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result)) throw UserError("a tensor size overflows 64 bits");
  return result;
}

inline int64_t checked_add(int64_t a, int64_t b) {
  int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw UserError("a tensor size overflows 64 bits");
  return result;
}

}  // namespace tenon
