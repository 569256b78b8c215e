#include "base/disk_cache.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_form.h"
#include "base/thread_pool.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kMegabyte = 1 << 20;
constexpr size_t kHeaderBytes = 84;

class DiskCacheTest : public ::testing::Test {
 protected:
  DiskCacheTest() {
    std::string name = fs::temp_directory_path() / "tenon-cache-XXXXXX";
    parent_ = ::mkdtemp(name.data());
    folder_ = parent_ / "cache";
  }
  ~DiskCacheTest() override { fs::remove_all(parent_); }

  DiskCache open(uint64_t limit = kMegabyte) const { return {folder_, limit}; }
  static Digest key(const std::string& text) { return sha256(text); }
  fs::path entry(const std::string& text) const {
    return folder_ / ("tenon-code-" + hex(key(text)));
  }
  static std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void overwrite(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }
  static mode_t mode(const fs::path& path) {
    struct stat known {};
    EXPECT_EQ(::lstat(path.c_str(), &known), 0) << path;
    return known.st_mode & 07777;
  }
  void used_ago(const std::string& text, int seconds) const {
    fs::last_write_time(entry(text),
                        fs::file_time_type::clock::now() - std::chrono::seconds(seconds));
  }
  // "a" is not there, for this reason; after another put it is.
  void expect_made_anew(const std::string& reason) const {
    DiskCache cache = open();
    EXPECT_EQ(cache.get("code", key("a")), std::nullopt);
    EXPECT_THAT(cache.problems(), ElementsAre(AllOf(HasSubstr(reason), HasSubstr("made anew"))));
    cache.put("code", key("a"), "payload");
    EXPECT_EQ(cache.get("code", key("a")), "payload");
    EXPECT_EQ(cache.problems().size(), 1U);
  }
  // Nothing is read or written, for this reason, and nobody minds.
  static void expect_unused(const fs::path& folder, const std::string& reason) {
    DiskCache cache(folder, kMegabyte);
    cache.put("code", key("a"), "payload");
    EXPECT_EQ(cache.get("code", key("a")), std::nullopt);
    ASSERT_FALSE(cache.problems().empty());
    for (const std::string& problem : cache.problems()) EXPECT_THAT(problem, HasSubstr(reason));
  }

  fs::path parent_, folder_;
};

TEST_F(DiskCacheTest, KeepsBytesForTheNextProcess) {
  const std::string bytes("a\0b", 3);
  open().put("code", key("a"), bytes);
  open().put("code", key("empty"), "");
  DiskCache cache = open();
  EXPECT_EQ(cache.get("code", key("a")), bytes);
  EXPECT_EQ(cache.get("code", key("empty")), "");
  EXPECT_EQ(cache.get("code", key("b")), std::nullopt);
  EXPECT_EQ(cache.get("other", key("a")), std::nullopt);
  EXPECT_THAT(cache.problems(), IsEmpty());
  EXPECT_EQ(cache.counts().at("code").hits, 2);
  EXPECT_EQ(cache.counts().at("code").misses, 1);
  EXPECT_EQ(cache.counts().at("other").misses, 1);
}

TEST_F(DiskCacheTest, IsItsOwnersAlone) {
  folder_ = parent_ / "new" / "cache";
  const mode_t before = ::umask(0);
  open().put("code", key("a"), "payload");
  ::umask(before);
  EXPECT_EQ(mode(parent_ / "new"), 0700U);
  EXPECT_EQ(mode(folder_), 0700U);
  EXPECT_EQ(mode(entry("a")), 0600U);
}

TEST_F(DiskCacheTest, AFlippedByteIsSeenWhereverItIs) {
  open().put("code", key("a"), "payload");
  const std::string sound = contents(entry("a"));
  ASSERT_EQ(sound.size(), kHeaderBytes + 7);
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string flipped = sound;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    overwrite(entry("a"), flipped);
    DiskCache cache = open();
    EXPECT_EQ(cache.get("code", key("a")), std::nullopt) << i;
    EXPECT_EQ(cache.problems().size(), 1U) << i;
  }
  expect_made_anew("SHA-256");
}

TEST_F(DiskCacheTest, AnEntryThatWasCutOrGrewIsSeen) {
  open().put("code", key("a"), "payload");
  const std::string sound = contents(entry("a"));
  for (size_t size = 0; size < sound.size(); ++size) {
    overwrite(entry("a"), sound.substr(0, size));
    EXPECT_EQ(open().get("code", key("a")), std::nullopt) << size;
  }
  expect_made_anew("length");
  overwrite(entry("a"), sound + "x");
  expect_made_anew("length");
  overwrite(entry("a"), "");
  expect_made_anew("cut off");
}

// The length in the header is believed only where the file has it.
TEST_F(DiskCacheTest, AnEntryThatClaimsALotCostsNoMemory) {
  open().put("code", key("a"), "payload");
  std::string claims = contents(entry("a"));
  ByteWriter length;
  length.number(uint64_t{1} << 50);
  claims.replace(44, 8, length.take());
  overwrite(entry("a"), claims);
  expect_made_anew("length");
  fs::resize_file(entry("a"), (uint64_t{1} << 40));  // mostly a hole
  expect_made_anew("larger than the cache");
}

TEST_F(DiskCacheTest, AnEntryUnderAnothersNameIsSeen) {
  open().put("code", key("b"), "of b");
  fs::rename(entry("b"), entry("a"));
  expect_made_anew("another's");
}

TEST_F(DiskCacheTest, LinksAndOtherThingsInPlaceOfAnEntryAreNotFollowed) {
  open().put("code", key("a"), "payload");
  const fs::path outside = parent_ / "outside";
  fs::rename(entry("a"), outside);
  fs::create_symlink(outside, entry("a"));
  const std::string before = contents(outside);
  expect_made_anew("symlink");
  EXPECT_EQ(contents(outside), before);
  EXPECT_FALSE(fs::is_symlink(entry("a")));

  fs::remove(entry("a"));
  ASSERT_EQ(::mkfifo(entry("a").c_str(), 0600), 0);
  expect_made_anew("regular");
}

TEST_F(DiskCacheTest, AnEntryThatOthersMayWriteIsNotUsed) {
  open().put("code", key("a"), "payload");
  for (const mode_t permissions : {0620U, 0602U, 0666U}) {
    ASSERT_EQ(::chmod(entry("a").c_str(), permissions), 0);
    expect_made_anew("others may write");
  }
}

TEST_F(DiskCacheTest, AnotherUsersEntryOrFolderIsNotUsed) {
  open().put("code", key("a"), "payload");
  if (::chown(entry("a").c_str(), 12345, 12345) != 0) GTEST_SKIP() << "only root gives files away";
  expect_made_anew("another user");
  ASSERT_EQ(::chown(folder_.c_str(), 12345, 12345), 0);
  expect_unused(folder_, "another user");
}

TEST_F(DiskCacheTest, AFolderThatOthersMayWriteIsRefused) {
  for (const mode_t permissions : {0770U, 0707U, 0777U, 01777U}) {
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    ASSERT_EQ(::chmod(folder_.c_str(), permissions), 0);
    expect_unused(folder_, "others may write");
    EXPECT_TRUE(fs::is_empty(folder_));
  }
}

TEST_F(DiskCacheTest, AFolderThatIsALinkIsRefusedHoweverItIsWritten) {
  fs::create_directory(folder_);
  const fs::path link = parent_ / "link";
  fs::create_directory_symlink(folder_, link);
  for (const char* end : {"", "/", "//", "/."}) expect_unused(link.string() + end, "symlink");
  EXPECT_TRUE(fs::is_empty(folder_));
  EXPECT_EQ(DiskCache(folder_.string() + "/./", kMegabyte).folder(), folder_);
}

TEST_F(DiskCacheTest, AFolderThatCannotBeMadeIsTold) {
  expect_unused("/proc/self/tenon", "cannot be made");
  overwrite(parent_ / "file", "text");
  expect_unused(parent_ / "file", "Not a directory");
  expect_unused(parent_ / "file" / "cache", "Not a directory");
}

TEST_F(DiskCacheTest, AFolderThatGoesMeanwhileIsMadeAgain) {
  DiskCache cache = open();
  fs::remove_all(folder_);
  EXPECT_EQ(cache.get("code", key("a")), std::nullopt);
  cache.put("code", key("a"), "payload");
  EXPECT_EQ(cache.get("code", key("a")), "payload");
  EXPECT_THAT(cache.problems(), IsEmpty());
}

TEST_F(DiskCacheTest, AFullDiskIsToldOnceAndLeavesNothing) {
  DiskCache cache = open();
  cache.put("code", key("small"), "payload");
  // A limit on sizes of files does what a full disk would.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  for (const char* text : {"a", "b"}) cache.put("code", key(text), std::string(100000, 'n'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_THAT(cache.problems(), ElementsAre(HasSubstr("nothing is kept")));
  EXPECT_EQ(cache.get("code", key("small")), "payload");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(DiskCacheTest, TheLeastRecentlyUsedGo) {
  constexpr uint64_t kEntries = 8, kBytes = 1000;
  const uint64_t limit = kEntries * (kBytes + kHeaderBytes);
  const std::string payload(kBytes, 'p');
  for (int i = 0; i < 8; ++i) {
    open(limit).put("code", key(std::to_string(i)), payload);
    used_ago(std::to_string(i), 100 - i);
  }
  overwrite(folder_ / "tenon-notes", std::string(5000, 'n'));  // somebody else's
  EXPECT_EQ(open(limit).get("code", key("0")), payload);       // used now
  open(limit).put("code", key("new"), payload);
  EXPECT_FALSE(fs::exists(entry("1")));
  for (const char* kept : {"0", "5", "6", "7", "new"}) EXPECT_TRUE(fs::exists(entry(kept))) << kept;
  EXPECT_TRUE(fs::exists(folder_ / "tenon-notes"));
}

TEST_F(DiskCacheTest, StaysBelowItsLimit) {
  constexpr uint64_t kLimit = 64 << 10;
  DiskCache cache = open(kLimit), other = open(kLimit);
  for (int i = 0; i < 200; ++i) {
    (i % 2 == 0 ? cache : other).put("code", key(std::to_string(i)), std::string(1000, 'p'));
  }
  uint64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(folder_)) bytes += file.file_size();
  EXPECT_LE(bytes, kLimit + kLimit / 16);  // what another may write before we count again
  EXPECT_GT(bytes, kLimit / 2);
  cache.put("code", key("large"), std::string(kLimit, 'p'));
  EXPECT_FALSE(fs::exists(entry("large")));
  EXPECT_THAT(cache.problems(), IsEmpty());
}

TEST_F(DiskCacheTest, WhatAKilledWriterLeftGoesInTime) {
  fs::create_directory(folder_);
  ASSERT_EQ(::chmod(folder_.c_str(), 0700), 0);
  for (const char* name : {".tenon-old.tmp", ".tenon-new.tmp"}) overwrite(folder_ / name, "half");
  fs::last_write_time(folder_ / ".tenon-old.tmp",
                      fs::file_time_type::clock::now() - std::chrono::hours(2));
  open().put("code", key("a"), "payload");
  EXPECT_FALSE(fs::exists(folder_ / ".tenon-old.tmp"));
  EXPECT_TRUE(fs::exists(folder_ / ".tenon-new.tmp"));  // someone may be at it
}

TEST_F(DiskCacheTest, BytesThatMeanNothingAreRefusedOnce) {
  DiskCache cache = open();
  cache.put("code", key("a"), "nonsense");
  EXPECT_EQ(cache.get("code", key("a")), "nonsense");
  cache.refuse("code", key("a"), "it is nonsense");
  EXPECT_EQ(cache.get("code", key("a")), std::nullopt);
  EXPECT_EQ(cache.counts().at("code").hits, 0);
  EXPECT_EQ(cache.counts().at("code").misses, 2);
  EXPECT_THAT(cache.problems(), ElementsAre(HasSubstr("nonsense")));
}

std::string text_of(int number) { return std::string(20000, static_cast<char>('a' + number)); }

// Writers of the same entries, some killed in the middle, and readers: whole entries or none.
TEST_F(DiskCacheTest, ProcessesShareAFolder) {
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    DiskCache cache = open(100000);  // so that entries go as well
    bool sound = true;
    for (int i = 0; i < 150 || child == 3; ++i) {
      const int number = i % 7;
      cache.put("code", key(std::to_string(number)), text_of(number));
      const auto read = cache.get("code", key(std::to_string(number)));
      sound = sound && (!read || *read == text_of(number)) && cache.problems().empty();
    }
    ::_exit(sound ? 0 : 1);
  }
  for (int child = 0; child < 4; ++child) {
    if (child == 3) ::kill(children[3], SIGKILL);  // it never ends by itself
    int status = 0;
    ASSERT_EQ(::waitpid(children[child], &status, 0), children[child]);
    EXPECT_TRUE(child == 3 || status == 0) << child;
  }
  DiskCache cache = open(100000);
  for (int number = 0; number < 7; ++number) {
    const auto read = cache.get("code", key(std::to_string(number)));
    EXPECT_EQ(read.value_or(text_of(number)), text_of(number));
  }
  EXPECT_THAT(cache.problems(), IsEmpty());
}

TEST_F(DiskCacheTest, ConcurrentThreadsShareOne) {
  DiskCache cache = open(100000);
  parallel_for_each(
      256,
      [&](int64_t i) {
        const auto number = static_cast<int>(i % 7);
        cache.put("code", key(std::to_string(number)), text_of(number));
        const auto read = cache.get("code", key(std::to_string(number)));
        EXPECT_EQ(read.value_or(text_of(number)), text_of(number));
      },
      8);
  EXPECT_THAT(cache.problems(), IsEmpty());
  EXPECT_EQ(cache.counts().at("code").hits + cache.counts().at("code").misses, 256);
}

}  // namespace
}  // namespace tenon
