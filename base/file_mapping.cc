#include "base/file_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

#include <fmt/format.h>

#include "base/error.h"

namespace tenon {

namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what,
                       const std::string& reason) {
  throw UserError(fmt::format("cannot read the {} '{}': {}", what, path, reason));
}

}  // namespace

RegularFile::RegularFile(const std::string& path, const std::string& what)
    : descriptor(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) {
  if (!descriptor.is_open()) {
    fail(path, what,
         errno == ELOOP ? "it is a symlink, which is not followed" : because_of_errno());
  }
  struct stat known {};
  if (::fstat(descriptor.number(), &known) != 0) fail(path, what, because_of_errno());
  if (!S_ISREG(known.st_mode)) fail(path, what, "it is no regular file");
  size = static_cast<size_t>(known.st_size);
  if (size == 0) fail(path, what, "it is empty");
}

FileMapping::FileMapping(const std::string& path, const std::string& what) {
  const RegularFile file(path, what);
  size_ = file.size;
  start_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor.number(), 0);
  if (start_ == MAP_FAILED) fail(path, what, because_of_errno());
}

FileMapping::~FileMapping() { ::munmap(start_, size_); }

}  // namespace tenon
