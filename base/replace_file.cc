#include "base/replace_file.h"

#include <fcntl.h>
#include <sys/random.h>

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

}  // namespace

std::string because_of_errno() { return std::generic_category().message(errno); }

Support TemporaryFile::make(int folder, mode_t mode, TemporaryFile& file) {
  const std::string name = unguessable_name();
  file.file_ = Descriptor(
      ::openat(folder, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file.file_.is_open()) {
    return Support::no(
        fmt::format("check that its folder exists and is writable ({})", because_of_errno()));
  }
  file.folder_ = folder;
  file.name_ = name;
  return Support::yes();
}

bool TemporaryFile::rename_to(const std::string& name) {
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

}  // namespace tenon
