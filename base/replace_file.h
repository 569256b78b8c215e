// A file written whole or not at all in a folder that is held open: what publish_file and DiskCache
// are made of.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/support.h"

namespace tenon {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (is_open()) ::close(number_);
  }
  bool is_open() const { return number_ >= 0; }
  int number() const { return number_; }
  // What a file system says only now of what was written before; false with errno.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

std::string because_of_errno();

// Names that a write of ours begins and ends with before its rename.
inline constexpr std::string_view kTemporaryPrefix = ".tenon-", kTemporarySuffix = ".tmp";

// A new file in `folder` that nobody finds until rename_to(). Without that nothing of it stays
// behind: where the file system has files without a name (O_TMPFILE) it has none, and goes even
// with a process that is killed; elsewhere (NFS) it has one that nobody can guess. The folder's
// descriptor outlives it.
class TemporaryFile {
 public:
  TemporaryFile() = default;
  [[nodiscard]] static Support make(int folder, mode_t mode, TemporaryFile& file);
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile();

  int number() const { return file_.number(); }
  // Once. A link of that name is replaced, not followed. False with errno: nothing changed.
  bool rename_to(const std::string& name);
  // Gives it this name where nothing has it. False with errno, EEXIST where something has.
  bool link_as(const std::string& name) const;

 private:
  int folder_ = -1;
  std::string name_;  // empty: none
  Descriptor file_;
};

// Gives `name` the parts, one behind the other, in a file that gets the name once it is written:
// a link of that name is replaced, not followed. `prepare` sees the open file before that; false
// with errno: it is given up. Nothing stays behind where the answer is no.
[[nodiscard]] Support replace_file(int folder, const std::string& name,
                                   std::span<const std::string_view> parts, mode_t mode,
                                   const std::function<bool(int file)>& prepare = {});

// The same where nothing has the name, and on the disk before anybody sees it. Of several who do it
// at a time one is first and the others leave its file alone: yes for all of them.
[[nodiscard]] Support make_file_if_absent(int folder, const std::string& name,
                                          std::string_view contents, mode_t mode);

}  // namespace tenon
