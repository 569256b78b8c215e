// A program at one tuple of symbol values: every size is a number. Built once per tuple, then read
// only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/running/program.h"

namespace tenon::kernels {

struct ShapeInstance {
  struct Check {
    size_t slot = 0;
    DType dtype{};
    int64_t count = 0;
    int64_t lowest = 0, bound = 0;  // [lowest, bound)
    int64_t first = 0, step = 1;
    size_t which = 0;  // of the launch's checks
  };
  struct LaunchSize {
    int64_t tasks = 0;
    int64_t copy_bytes = 0;
    int64_t pieces = 1;  // that its tasks are dealt in; 1: the calling thread runs them
    size_t first_index = 0;
    std::vector<Check> checks;
    std::vector<int64_t> fetched_bytes;    // one per FetchedBuffer
    int64_t from_bytes = 0, to_bytes = 0;  // of SharedBuffers
  };
  std::vector<int64_t> symbols;
  std::vector<std::vector<int64_t>> inputs, outputs;  // dims
  std::vector<std::vector<int64_t>> input_elements;   // empty where any will do
  std::vector<LaunchSize> launches;
  std::vector<int64_t> indices;                    // of all launches, one after the other
  std::vector<std::vector<int64_t>> shape_writes;  // elements
  std::vector<int64_t> offsets;  // per slot: into the arena, or the counters; -1 elsewhere
  std::vector<int64_t> sizes;    // per slot: bytes of the arena or the caller's; 0 elsewhere
  int64_t arena_bytes = 0, counter_bytes = 0;
  bool is_parallel = false;  // some launch is worth waking threads; else the caller runs all pieces
};

// How many pieces tasks of so many nanoseconds are dealt in; 1: the calling thread runs them all.
int64_t count_pieces(int64_t tasks, int64_t task_cost, int threads);

// Throws UserError when the sizes contradict each other or overflow.
std::shared_ptr<const ShapeInstance> instantiate(const Program& program,
                                                 std::span<const int64_t> symbols, int threads);

// Every index in range, else a UserError that names the node.
void check_indices(const void* data, const ShapeInstance::Check& check, const std::string& node);

// Whether what the launch brings over is there already, since both buffers are the same memory.
// UserError where they overlap in part.
bool is_brought(const CompiledLaunch& launch, const ShapeInstance::LaunchSize& size, uintptr_t from,
                uintptr_t to);

// Sizes as elements of a tensor.
void store_extents(DType dtype, std::span<const int64_t> extents, void* to);

}  // namespace tenon::kernels
