// The one way in which Tenon writes a file: whole or not at all, also where others read or write
// the same name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/support.h"

namespace tenon {

// Gives `path` these contents. They are written beside it where nobody finds them and get the name
// at once: a reader sees the old file or the new one, and of several writers the last wins. The
// permissions of a file that is there are kept. A symlink stays and its target is written, but for
// one that a stranger put into a folder where anybody may (/tmp): the answer is no. What is not a
// regular file (a FIFO, a device, a folder) is left alone: the answer is no, as for everything that
// cannot be written, with the reason; nothing stays behind then.
[[nodiscard]] Support publish_file(const std::string& path, std::string_view contents);

// The same for contents that come piece by piece and are named after what they are: written to
// `number()`, and there under a name in the folder from publish() on, also after a power cut. A
// symlink of that name is replaced. Nothing stays behind without it.
class PendingFile {
 public:
  static std::unique_ptr<PendingFile> make(const std::string& folder, Support& support);
  virtual ~PendingFile() = default;
  virtual int number() const = 0;  // of the open file
  [[nodiscard]] virtual Support publish(const std::string& name) = 0;
};

}  // namespace tenon
