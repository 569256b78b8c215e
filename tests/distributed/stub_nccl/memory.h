// Memory that the stub's windows are made of: the stub driver's, where that plays the GPU, else the
// host's.
#pragma once

#include <cstddef>

namespace stub_nccl {

struct Memory {
  void* begin = nullptr;  // a multiple of 4096; null: there is none
  void* whole = nullptr;  // as it was allocated
};

Memory allocate(size_t bytes);
void free_memory(const Memory& memory);

}  // namespace stub_nccl
