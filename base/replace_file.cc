#include "base/replace_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <fmt/format.h>

namespace tenon {
namespace {

std::string unguessable_name() {
  std::array<unsigned char, 16> bytes{};
  // Never short and never fails for so few bytes, once the machine has started.
  while (::getrandom(bytes.data(), bytes.size(), 0) < 0 && errno == EINTR) {
  }
  return fmt::format("{}{:02x}{}", kTemporaryPrefix, fmt::join(bytes, ""), kTemporarySuffix);
}

bool write_all(int file, std::string_view contents) {
  while (!contents.empty()) {
    const ssize_t written = ::write(file, contents.data(), contents.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    contents.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool write_parts(int file, std::span<const std::string_view> parts) {
  for (const std::string_view part : parts) {
    if (!write_all(file, part)) return false;
  }
  return true;
}

std::string path_of(const Descriptor& file) {
  return fmt::format("/proc/self/fd/{}", file.number());
}

// A file without a name, which this process can give it one later.
Descriptor open_unnamed(int folder, mode_t mode) {
  Descriptor file(::openat(folder, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, mode));
  if (!file.is_open() || ::access(path_of(file).c_str(), F_OK) == 0) return file;
  return Descriptor();  // /proc is not mounted
}

}  // namespace

std::string because_of_errno() { return std::generic_category().message(errno); }

Support TemporaryFile::make(int folder, mode_t mode, TemporaryFile& file) {
  file.folder_ = folder;
  file.file_ = open_unnamed(folder, mode);
  if (file.file_.is_open()) return Support::yes();
  const std::string name = unguessable_name();
  file.file_ = Descriptor(
      ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.file_.is_open()) {
    return Support::no(
        fmt::format("check that its folder exists and is writable ({})", because_of_errno()));
  }
  file.name_ = name;
  return Support::yes();
}

bool TemporaryFile::link_as(const std::string& name) const {
  if (!name_.empty()) return ::linkat(folder_, name_.c_str(), folder_, name.c_str(), 0) == 0;
  return ::linkat(AT_FDCWD, path_of(file_).c_str(), folder_, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

bool TemporaryFile::rename_to(const std::string& name) {
  if (name_.empty()) {
    // What some file systems say only when a descriptor is closed, and this one must stay open.
    if (!Descriptor(::dup(file_.number())).close()) return false;
    if (link_as(name)) return true;
    // Only a name can take the place of another.
    const std::string other = unguessable_name();
    if (errno != EEXIST || !link_as(other)) return false;
    name_ = other;
  }
  if (!file_.close() || ::renameat(folder_, name_.c_str(), folder_, name.c_str()) != 0) {
    return false;
  }
  name_.clear();
  return true;
}

TemporaryFile::~TemporaryFile() {
  if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
}

Support replace_file(int folder, const std::string& name, std::span<const std::string_view> parts,
                     mode_t mode, const std::function<bool(int file)>& prepare) {
  TemporaryFile file;
  if (Support made = TemporaryFile::make(folder, mode, file); !made) return made;
  if (write_parts(file.number(), parts) && (!prepare || prepare(file.number())) &&
      file.rename_to(name)) {
    return Support::yes();
  }
  return Support::no(because_of_errno());
}

Support make_file_if_absent(int folder, const std::string& name, std::string_view contents,
                            mode_t mode) {
  TemporaryFile file;
  if (Support made = TemporaryFile::make(folder, mode, file); !made) return made;
  if (write_all(file.number(), contents) && ::fsync(file.number()) == 0 &&
      (file.link_as(name) || errno == EEXIST)) {
    return Support::yes();
  }
  return Support::no(because_of_errno());
}

}  // namespace tenon
