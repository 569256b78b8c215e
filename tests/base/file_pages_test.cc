#include "base/file_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

namespace tenon {
namespace {

constexpr size_t kPages = 8;

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// A file mapped as ONNX Runtime maps one: private, and writable.
class MappedFile {
 public:
  MappedFile() : bytes_(kPages * page_bytes()), file_(std::tmpfile(), &std::fclose) {
    std::vector<unsigned char> content(bytes_);
    std::iota(content.begin(), content.end(), 1);
    if (std::fwrite(content.data(), 1, bytes_, file_.get()) != bytes_) std::abort();
    std::fflush(file_.get());
    data_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file_.get()), 0));
  }
  ~MappedFile() { munmap(data_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  int sum() const {
    return std::accumulate(data_, data_ + bytes_, 0,
                           [](int sum, std::byte byte) { return sum + static_cast<int>(byte); });
  }

 private:
  size_t bytes_;
  std::unique_ptr<FILE, int (*)(FILE*)> file_;
  std::byte* data_ = nullptr;
};

// Pages of the range that are in this process's memory.
int64_t resident_pages(std::span<const std::byte> bytes) {
  FILE* file = std::fopen("/proc/self/pagemap", "r");
  std::vector<uint64_t> entries(bytes.size() / page_bytes());
  const auto first = reinterpret_cast<uintptr_t>(bytes.data()) / page_bytes();
  std::fseek(file, static_cast<long>(first * sizeof(uint64_t)), SEEK_SET);
  const size_t got = std::fread(entries.data(), sizeof(uint64_t), entries.size(), file);
  std::fclose(file);
  EXPECT_EQ(got, entries.size());
  return std::ranges::count_if(entries, [](uint64_t entry) { return (entry >> 63) != 0; });
}

TEST(FilePages, LeaveMemoryAndComeBackFromTheFile) {
  const MappedFile file;
  const int sum = file.sum();
  ASSERT_EQ(resident_pages(file.bytes()), kPages);
  release_file_pages(file.bytes());
  EXPECT_EQ(resident_pages(file.bytes()), 0);
  EXPECT_EQ(file.sum(), sum);
}

TEST(FilePages, OnlyWholePagesGo) {
  const MappedFile file;
  ASSERT_NE(file.sum(), 0);  // all pages were read
  release_file_pages(file.bytes().subspan(1, 2 * page_bytes()));
  EXPECT_EQ(resident_pages(file.bytes().first(page_bytes())), 1);
  EXPECT_EQ(resident_pages(file.bytes().subspan(2 * page_bytes(), page_bytes())), 1);
  release_file_pages(file.bytes().subspan(7, page_bytes() - 8));
  EXPECT_EQ(resident_pages(file.bytes().first(page_bytes())), 1);
}

TEST(FilePages, WhatWasWrittenStays) {
  const MappedFile file;
  file.bytes()[3 * page_bytes() + 5] = std::byte{99};
  const int sum = file.sum();
  release_file_pages(file.bytes());
  EXPECT_EQ(file.sum(), sum);
  EXPECT_EQ(file.bytes()[3 * page_bytes() + 5], std::byte{99});
}

TEST(FilePages, MemoryWithoutAFileStays) {
  const std::vector<std::byte> heap(kPages * page_bytes(), std::byte{7});
  release_file_pages(heap);
  EXPECT_EQ(std::ranges::count(heap, std::byte{7}), static_cast<int64_t>(heap.size()));
  release_file_pages({});
}

}  // namespace
}  // namespace tenon
