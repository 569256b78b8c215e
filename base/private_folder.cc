#include "base/private_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

namespace tenon {
namespace {

constexpr mode_t kForOthers = S_IWGRP | S_IWOTH;

bool make_folders(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), S_IRWXU) == 0 || errno == EEXIST) return true;
  if (errno != ENOENT || !path.has_relative_path() || !make_folders(path.parent_path())) {
    return false;
  }
  return ::mkdir(path.c_str(), S_IRWXU) == 0 || errno == EEXIST;
}

}  // namespace

std::string plain_path(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  if (error) path = std::filesystem::path(folder).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path;
}

Support is_ours(const struct stat& known) {
  if (known.st_uid != ::geteuid()) return Support::no("it belongs to another user");
  if ((known.st_mode & kForOthers) != 0) {
    return Support::no(
        fmt::format("others may write to it (mode {:04o}): chmod go-w", known.st_mode & 07777));
  }
  return Support::yes();
}

Support open_private_folder(const std::string& path, bool make, Descriptor& folder) {
  if (make && !make_folders(path)) {
    return Support::no(fmt::format("it cannot be made: {}", because_of_errno()));
  }
  folder = Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat known {};
  if (!folder.is_open()) {
    const int cause = errno;
    if (::lstat(path.c_str(), &known) == 0 && S_ISLNK(known.st_mode)) {
      return Support::no("it is a symlink: name the folder itself");
    }
    errno = cause;
    return Support::no(because_of_errno());
  }
  if (::fstat(folder.number(), &known) != 0) return Support::no(because_of_errno());
  return is_ours(known);
}

}  // namespace tenon
