// A file's bytes in memory, as far as somebody reads them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/replace_file.h"

namespace tenon {

// A regular file that was opened to be read, and how long it is. What is none, a symlink or empty
// is refused: UserError that says what kind of file this is to be (`what`).
struct RegularFile {
  RegularFile(const std::string& path, const std::string& what);

  Descriptor descriptor;
  size_t size = 0;
};

class FileMapping {
 public:
  // Refuses what RegularFile does.
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
