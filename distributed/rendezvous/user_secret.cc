#include "distributed/rendezvous/user_secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdlib>

#include "base/error.h"
#include "base/private_folder.h"
#include "base/replace_file.h"

namespace tenon::distributed {
namespace {

constexpr const char* kFile = "rank-secret";
constexpr mode_t kForOthers = S_IRWXG | S_IRWXO;

// An absolute path, as the XDG Base Directory Specification asks; else empty.
std::string path_in(const char* variable) {
  const char* const value = ::secure_getenv(variable);
  return value != nullptr && value[0] == '/' ? value : "";
}

Support is_sound(int file) {
  struct stat known {};
  if (::fstat(file, &known) != 0) return Support::no(because_of_errno());
  if (!S_ISREG(known.st_mode)) return Support::no("it is not a regular file");
  if (Support ours = is_ours(known); !ours) return ours;
  if ((known.st_mode & kForOthers) != 0) {
    return Support::no(
        fmt::format("others may read it (mode {:04o}): remove it", known.st_mode & 07777));
  }
  if (known.st_size == static_cast<off_t>(sizeof(Digest))) return Support::yes();
  return Support::no(
      fmt::format("it has {} bytes, expected {}: remove it", known.st_size, sizeof(Digest)));
}

Support read_secret(int folder, Digest& secret, bool& is_absent) {
  // Not to wait for who writes into a FIFO.
  const Descriptor file(::openat(folder, kFile, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  is_absent = !file.is_open() && errno == ENOENT;
  if (!file.is_open()) {
    return Support::no(errno == ELOOP ? "it is a symlink: remove it" : because_of_errno());
  }
  if (Support sound = is_sound(file.number()); !sound) return sound;
  // Nobody else writes to it, and it is published whole.
  if (::read(file.number(), secret.data(), secret.size()) != static_cast<ssize_t>(secret.size())) {
    return Support::no("it cannot be read");
  }
  return Support::yes();
}

Support secret_in(const std::string& path, Digest& secret) {
  Descriptor folder;
  if (Support opened = open_private_folder(path, true, folder); !opened) {
    return Support::no(fmt::format("{}: {}", path, opened.reason));
  }
  bool is_absent = false;
  Support found = read_secret(folder.number(), secret, is_absent);
  if (is_absent) {
    Digest fresh;
    if (::getentropy(fresh.data(), fresh.size()) != 0) return Support::no(because_of_errno());
    found = make_file_if_absent(folder.number(), kFile, bytes_of(fresh), S_IRUSR | S_IWUSR);
    if (found) found = read_secret(folder.number(), secret, is_absent);
  }
  return found ? found : Support::no(fmt::format("{}/{}: {}", path, kFile, found.reason));
}

// A stale XDG_RUNTIME_DIR, of somebody else or of a session that has ended, is common (su, cron).
Support secret_in_runtime_folder(const std::string& path, Digest& secret) {
  if (path.empty()) return Support::no("XDG_RUNTIME_DIR is not set");
  Descriptor folder;
  if (Support ours = open_private_folder(plain_path(path), false, folder); !ours) {
    return Support::no(fmt::format("XDG_RUNTIME_DIR={}: {}", path, ours.reason));
  }
  return secret_in(plain_path(path) + "/tenon", secret);
}

}  // namespace

SecretFolders secret_folders() {
  std::string cache = path_in("XDG_CACHE_HOME");
  if (cache.empty()) {
    const std::string home = path_in("HOME");
    if (!home.empty()) cache = home + "/.cache";
  }
  return {.runtime = path_in("XDG_RUNTIME_DIR"), .cache = cache.empty() ? "" : cache + "/tenon"};
}

Digest user_secret(const SecretFolders& folders) {
  Digest secret{};
  const Support runtime = secret_in_runtime_folder(folders.runtime, secret);
  if (runtime) return secret;
  const Support cache = folders.cache.empty() ? Support::no("HOME is not set")
                                              : secret_in(plain_path(folders.cache), secret);
  if (cache) return secret;
  throw UserError(
      fmt::format("ranks of one host know each other by a file of their user's, and there can be "
                  "none ({}; {}): {}",
                  runtime.reason, cache.reason, kGiveToken));
}

LaunchPlace with_user_secret(LaunchPlace place, const SecretFolders& folders) {
  if (!place.needs_user_secret || place.size == 1) return place;
  place.token = hmac_sha256(user_secret(folders), bytes_of(place.token));
  return place;
}

}  // namespace tenon::distributed
