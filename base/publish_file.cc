#include "base/publish_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>

#include <fmt/format.h>

#include "base/replace_file.h"

namespace tenon {
namespace {

constexpr int kMostLinks = 40;  // as many as the kernel follows
constexpr mode_t kPermissions = S_IRWXU | S_IRWXG | S_IRWXO;

// A file by its folder, held open: nobody can put another folder in its place meanwhile.
struct Place {
  Descriptor folder;
  std::string name;
  std::optional<struct stat> known;  // of the file that is there
};

Support kind_is_regular(mode_t mode) {
  if (S_ISREG(mode)) return Support::yes();
  const char* kind = S_ISDIR(mode)    ? "a folder"
                     : S_ISFIFO(mode) ? "a FIFO"
                     : S_ISCHR(mode)  ? "a character device"
                     : S_ISBLK(mode)  ? "a block device"
                                      : "a socket";
  return Support::no(fmt::format("it is {}: name a regular file or a new one", kind));
}

Support open_folder(const std::filesystem::path& path, Descriptor& folder) {
  folder =
      Descriptor(::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.is_open()) return Support::yes();
  return Support::no(
      fmt::format("check that its folder exists and is writable ({})", because_of_errno()));
}

// What is there under the place's name.
Support look(Place& place) {
  if (place.name.empty()) return Support::no("it has no file name");
  struct stat known {};
  if (::fstatat(place.folder.number(), place.name.c_str(), &known, AT_SYMLINK_NOFOLLOW) == 0) {
    place.known = known;
  } else if (errno == ENOENT) {
    place.known.reset();
  } else {
    return Support::no(because_of_errno());
  }
  return Support::yes();
}

Support open_place(const std::filesystem::path& path, Place& place) {
  place.name = path.filename();
  if (Support opened = open_folder(path.parent_path(), place.folder); !opened) return opened;
  return look(place);
}

// As the kernel answers it (fs.protected_symlinks), which here sees no link being followed: where
// anybody may plant links, and only their owners may take them away, those of strangers are none
// of ours.
Support may_follow(const Place& place) {
  constexpr mode_t kAnybodys = S_ISVTX | S_IWOTH;
  struct stat folder {};
  if (::fstat(place.folder.number(), &folder) != 0) return Support::no(because_of_errno());
  const uid_t owner = place.known->st_uid;
  if (owner == ::geteuid() || owner == folder.st_uid || (folder.st_mode & kAnybodys) != kAnybodys) {
    return Support::yes();
  }
  return Support::no(
      fmt::format("it is a symlink that user {} put into a folder where anybody may: remove it, or "
                  "name a file in a folder of your own",
                  owner));
}

Support target_of_link(const Place& place, std::filesystem::path& path) {
  if (Support allowed = may_follow(place); !allowed) return allowed;
  struct statfs system {};
  // /dev/stdout leads here: the file is somebody's open one, who would not see another.
  if (::fstatfs(place.folder.number(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
    return Support::no("it is an open file of a process: name a regular file or a new one");
  }
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(path, error);
  if (error) return Support::no(error.message());
  path = path.parent_path() / target;  // an absolute target replaces the folder
  return Support::yes();
}

// Follows symlinks to the file that they name.
Support find_place(std::filesystem::path path, Place& place) {
  for (int links = 0; links <= kMostLinks; ++links) {
    if (Support opened = open_place(path, place); !opened) return opened;
    if (!place.known) {
      return links == 0 ? Support::yes() : Support::no("it is a symlink to a file that is absent");
    }
    if (!S_ISLNK(place.known->st_mode)) return kind_is_regular(place.known->st_mode);
    if (Support followed = target_of_link(place, path); !followed) return followed;
  }
  return Support::no("it is a symlink in a circle");
}

// Owner and permissions of the file that is replaced.
bool keep_access(int file, const struct stat& known) {
  mode_t mode = known.st_mode & kPermissions;
  if (::fchown(file, known.st_uid, known.st_gid) != 0) {
    // Another group must not get what was this group's alone.
    mode &= ~S_IRWXG | ((mode & S_IRWXO) << 3);
  }
  return ::fchmod(file, mode) == 0;
}

Support may_replace(const Place& place) {
  if (place.known &&
      ::faccessat(place.folder.number(), place.name.c_str(), W_OK, AT_EACCESS) != 0) {
    return Support::no(because_of_errno());
  }
  return Support::yes();
}

// A new file's loses what the umask takes.
constexpr mode_t kNewFile = 0666;
mode_t first_mode(const Place& place) { return place.known ? S_IRUSR | S_IWUSR : kNewFile; }

class FileInFolder final : public PendingFile {
 public:
  Support open(const std::string& folder) {
    if (Support opened = open_folder(folder, place_.folder); !opened) return opened;
    return TemporaryFile::make(place_.folder.number(), kNewFile, file_);
  }
  int number() const override { return file_.number(); }
  Support publish(const std::string& name) override {
    place_.name = name;
    if (Support looked = look(place_); !looked) return looked;
    if (Support allowed = may_take_the_name(); !allowed) return allowed;
    const bool keeps = !is_a_file() || keep_access(number(), *place_.known);
    if (!keeps || ::fsync(number()) != 0 || !file_.rename_to(place_.name)) {
      return Support::no(because_of_errno());
    }
    ::fsync(place_.folder.number());  // where a file system cannot, the name may come late
    return Support::yes();
  }

 private:
  bool is_a_file() const { return place_.known && S_ISREG(place_.known->st_mode); }
  Support may_take_the_name() const {
    if (!place_.known || S_ISLNK(place_.known->st_mode)) return Support::yes();
    return is_a_file() ? may_replace(place_) : kind_is_regular(place_.known->st_mode);
  }

  Place place_;
  TemporaryFile file_;
};

}  // namespace

Support publish_file(const std::string& path, std::string_view contents) {
  Place place;
  if (Support found = find_place(path, place); !found) return found;
  if (Support allowed = may_replace(place); !allowed) return allowed;
  return replace_file(place.folder.number(), place.name, {&contents, 1}, first_mode(place),
                      [&](int file) { return !place.known || keep_access(file, *place.known); });
}

std::unique_ptr<PendingFile> PendingFile::make(const std::string& folder, Support& support) {
  auto file = std::make_unique<FileInFolder>();
  support = file->open(folder);
  return support ? std::move(file) : nullptr;
}

}  // namespace tenon
