// The ranks of the stub's jobs: processes that share a file, in which each has a part for its
// symmetric memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace stub_nvshmem {

inline constexpr int kMaxRanks = 8, kMaxTeams = 64;
inline constexpr size_t kHeapBytes = size_t{40} << 20;  // of a file that is mostly holes

std::string make_world_file();

class World {
 public:
  World(const std::string& file, int rank, int size);
  ~World();

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Waits for the ranks of a team, at most some seconds. False: one of them did not come.
  bool meet(int team, const std::vector<int>& ranks);
  void* allocate(size_t bytes);  // null where there is no more
  bool holds(const void* memory, size_t bytes) const;
  // The same memory of another rank.
  const void* of(int rank, const void* memory) const;

 private:
  struct Shared {
    std::atomic<uint64_t> arrived[kMaxRanks][kMaxTeams];
    alignas(64) char heaps[kMaxRanks][kHeapBytes];
  };
  char* heap(int rank) const { return shared_->heaps[rank]; }

  friend std::string make_world_file();
  const int rank_, size_;
  Shared* shared_ = nullptr;
  size_t used_ = 0;
};

}  // namespace stub_nvshmem
