// The one way in which Tenon writes a file: whole or not at all, also where others read or write
// the same name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/support.h"

namespace tenon {

// Gives `path` these contents. They are written beside it under a name that nobody can guess and
// published by rename: a reader sees the old file or the new one, and of several writers the last
// wins. The permissions of a file that is there are kept. A symlink stays and its target is
// written. What is not a regular file (a FIFO, a device, a folder) is left alone: the answer is no,
// as for everything that cannot be written, with the reason; nothing stays behind then.
[[nodiscard]] Support publish_file(const std::string& path, std::string_view contents);

// The same for contents that come piece by piece: written to `number()`, and there under their name
// from publish() on, also after a power cut. Nothing stays behind without it.
class PendingFile {
 public:
  static std::unique_ptr<PendingFile> make(const std::string& path, Support& support);
  virtual ~PendingFile() = default;
  virtual int number() const = 0;  // of the open file
  [[nodiscard]] virtual Support publish() = 0;
};

}  // namespace tenon
