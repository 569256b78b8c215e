// A file's bytes in memory, as far as somebody reads them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tenon {

class FileMapping {
 public:
  // What is no regular file, a symlink or empty is refused: UserError that says what kind of file
  // this is to be (`what`).
  FileMapping(const std::string& path, const std::string& what);
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  ~FileMapping();
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(start_), size_};
  }

 private:
  void* start_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tenon
