#include "tests/distributed/stub_nvshmem/world.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace stub_nvshmem {

namespace {

// Files of jobs that never began, which nobody else removes.
std::vector<std::string>& made_files() {
  static std::vector<std::string>& files = *new std::vector<std::string>;
  return files;
}
void remove_files() {
  for (const std::string& file : made_files()) ::unlink(file.c_str());
}

}  // namespace

std::string make_world_file() {
  std::string name = "/tmp/tenon-nvshmem-XXXXXX";
  const int file = ::mkstemp(name.data());
  if (file < 0 || ::ftruncate(file, sizeof(World::Shared)) != 0) return "";
  ::close(file);
  if (made_files().empty()) std::atexit(remove_files);
  made_files().push_back(name);
  return name;
}

World::World(const std::string& file, int rank, int size) : rank_(rank), size_(size) {
  const int opened = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) throw std::runtime_error("no file " + file);
  void* mapped = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
  ::close(opened);
  if (mapped == MAP_FAILED) throw std::runtime_error("no memory for " + file);
  shared_ = static_cast<Shared*>(mapped);
}

World::~World() { ::munmap(shared_, sizeof(Shared)); }

bool World::meet(int team, const std::vector<int>& ranks) {
  const uint64_t mine = ++shared_->arrived[rank_][team];
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  return std::ranges::all_of(ranks, [&](int rank) {
    while (shared_->arrived[rank][team] < mine) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  });
}

void* World::allocate(size_t bytes) {
  if (used_ + bytes > kHeapBytes) return nullptr;
  void* memory = heap(rank_) + used_;
  used_ += bytes;
  return memory;
}

bool World::holds(const void* memory, size_t bytes) const {
  const char* begin = static_cast<const char*>(memory);
  return begin >= heap(rank_) && begin + bytes <= heap(rank_) + used_;
}

const void* World::of(int rank, const void* memory) const {
  return heap(rank) + (static_cast<const char*>(memory) - heap(rank_));
}

}  // namespace stub_nvshmem
