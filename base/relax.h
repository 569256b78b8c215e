// What a thread does between two looks at a value that another core is about to change.
#pragma once

namespace tenon {

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores
#endif
}

}  // namespace tenon
