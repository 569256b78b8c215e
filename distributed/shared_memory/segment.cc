#include "distributed/shared_memory/segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <utility>

#include "distributed/host_id.h"

namespace tenon::distributed {
namespace {

// The secret is at the front and has a page for itself.
constexpr size_t kFront = 4096;
constexpr size_t kSecretBytes = 32;

Support failed(const std::string& what) {
  return Support::no(fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string hex(const char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += fmt::format("{:02x}", static_cast<uint8_t>(bytes[i]));
  return text;
}

struct flock presence(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(bytes_, other.bytes_);
  std::swap(memory_, other.memory_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

SharedSegment::~SharedSegment() {
  if (mapped_ != nullptr) ::munmap(mapped_, bytes_);
  if (file_ >= 0) ::close(file_);
}

Support SharedSegment::map(size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) return failed(fmt::format("mmap of {} bytes", bytes));
  bytes_ = bytes;
  mapped_ = static_cast<char*>(mapped);
  memory_ = mapped_ + kFront;
  return Support::yes();
}

Support SharedSegment::make(size_t bytes, SharedSegment& made) {
  made.file_ = ::memfd_create("tenon", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (made.file_ < 0) return failed("memfd_create");
  if (::ftruncate(made.file_, static_cast<off_t>(kFront + bytes)) != 0) return failed("ftruncate");
  // Nobody can take pages away from under the others.
  if (::fcntl(made.file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) return failed("seals");
  if (Support mapped = made.map(kFront + bytes); !mapped) return mapped;
  if (::getrandom(made.mapped_, kSecretBytes, 0) != kSecretBytes) return failed("getrandom");
  return Support::yes();
}

std::string SharedSegment::address() const {
  return fmt::format("{} {} {} {}", host_id(), ::getpid(), file_, hex(mapped_, kSecretBytes));
}

Support SharedSegment::open(const std::string& address, size_t bytes, SharedSegment& opened) {
  std::istringstream words(address);
  std::string host, secret;
  int process = 0, file = 0;
  if (!(words >> host >> process >> file >> secret)) {
    return Support::no(fmt::format("'{}' is no address of shared memory", address));
  }
  if (host.empty() || host != host_id()) return Support::no("it is on another host");
  const std::string path = fmt::format("/proc/{}/fd/{}", process, file);
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return failed(path);
  // Behind the same path may be another process's file: process ids differ between containers.
  const Support other = Support::no(path + " is another process's: process ids are not shared");
  const auto fits = [&] {
    return S_ISREG(found.st_mode) && found.st_size == static_cast<off_t>(kFront + bytes);
  };
  if (!fits()) return other;  // to open a device would be to use it
  opened.file_ = ::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (opened.file_ < 0) return failed(path);
  // It may have been replaced since, and a file that can shrink would take this process with it.
  if (::fstat(opened.file_, &found) != 0) return failed(path);
  if (!fits()) return other;
  const int seals = ::fcntl(opened.file_, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Support::no(path + " is not sealed against shrinking, as memory of a rank is");
  }
  if (Support mapped = opened.map(kFront + bytes); !mapped) return mapped;
  return hex(opened.mapped_, kSecretBytes) == secret ? Support::yes() : other;
}

// A lock of the opened file: the kernel lets go of it with the process, before anybody waits for
// its end, and it says nothing of process ids.
Support SharedSegment::enter(int rank) const {
  struct flock lock = presence(rank);
  return ::fcntl(file_, F_OFD_SETLK, &lock) == 0 ? Support::yes() : failed("F_OFD_SETLK");
}

bool SharedSegment::is_there(int rank) const {
  struct flock lock = presence(rank);
  return ::fcntl(file_, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace tenon::distributed
