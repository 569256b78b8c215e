#include "base/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/error.h"
#include "base/replace_file.h"

namespace tenon {

FileMapping::FileMapping(const std::string& path, const std::string& what) {
  const auto fail = [&](const std::string& reason) {
    throw UserError(fmt::format("cannot read the {} '{}': {}", what, path, reason));
  };
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) {
    fail(errno == ELOOP ? "it is a symlink, which is not followed" : because_of_errno());
  }
  struct stat known {};
  if (::fstat(file.number(), &known) != 0) fail(because_of_errno());
  if (!S_ISREG(known.st_mode)) fail("it is no regular file");
  size_ = static_cast<size_t>(known.st_size);
  if (size_ == 0) fail("it is empty");
  start_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.number(), 0);
  if (start_ == MAP_FAILED) fail(because_of_errno());
}

FileMapping::~FileMapping() { ::munmap(start_, size_); }

}  // namespace tenon
