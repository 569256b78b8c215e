#include "base/publish_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread_pool.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class PublishFile : public ::testing::Test {
 protected:
  PublishFile() {
    std::string name = fs::temp_directory_path() / "tenon-publish-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~PublishFile() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ / name; }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static mode_t mode(const std::string& path) {
    struct stat known {};
    EXPECT_EQ(::lstat(path.c_str(), &known), 0);
    return known.st_mode;
  }
  void put(const std::string& name, const std::string& text, mode_t mode) const {
    std::ofstream(path(name)) << text;
    ASSERT_EQ(::chmod(path(name).c_str(), mode), 0);
  }
  // Names in the folder: nothing but what a test put there and what was published.
  std::ptrdiff_t files() const { return std::distance(fs::directory_iterator(folder_), {}); }

  // The answer is no with this reason, and nothing was made or changed.
  void expect_refused(const std::string& name, const std::string& reason) const {
    const std::ptrdiff_t before = files();
    const Support written = publish_file(path(name), "new");
    EXPECT_FALSE(written.ok);
    EXPECT_THAT(written.reason, HasSubstr(reason));
    EXPECT_EQ(files(), before);
  }

  fs::path folder_;
};

TEST_F(PublishFile, ANewFileHasTheUmasksPermissions) {
  const mode_t before = ::umask(027);
  EXPECT_TRUE(publish_file(path("new"), std::string_view("a\0b", 3)).ok);
  ::umask(before);
  EXPECT_EQ(contents(path("new")), std::string("a\0b", 3));
  EXPECT_EQ(mode(path("new")) & 07777, 0640U);
  EXPECT_EQ(files(), 1);
}

TEST_F(PublishFile, AFileThatIsThereKeepsItsPermissions) {
  for (const mode_t permissions : {0600U, 0640U, 0666U}) {
    put("known", "a longer text than the new one", permissions);
    EXPECT_TRUE(publish_file(path("known"), "new").ok);
    EXPECT_EQ(contents(path("known")), "new");
    EXPECT_EQ(mode(path("known")) & 07777, permissions);
  }
  EXPECT_EQ(files(), 1);
}

TEST_F(PublishFile, ANameMayBeAsLongAsAFileSystemTakes) {
  EXPECT_TRUE(publish_file(path(std::string(255, 'n')), "new").ok);
  expect_refused(std::string(256, 'n'), "too long");
}

TEST_F(PublishFile, ANameWithoutAFolderIsInTheCurrentOne) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  EXPECT_TRUE(publish_file("bare", "new").ok);
  fs::current_path(before);
  EXPECT_EQ(contents(path("bare")), "new");
}

TEST_F(PublishFile, WhatIsNotARegularFileIsLeftAlone) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  expect_refused("fifo", "a FIFO");
  EXPECT_TRUE(S_ISFIFO(mode(path("fifo"))));
  fs::create_directory(path("folder"));
  expect_refused("folder", "a folder");
  EXPECT_TRUE(fs::is_empty(path("folder")));
  fs::create_symlink("/dev/null", path("null"));
  expect_refused("null", "a character device");
  EXPECT_TRUE(S_ISCHR(mode("/dev/null")));
  EXPECT_TRUE(S_ISLNK(mode(path("null"))));
}

TEST_F(PublishFile, ASymlinkStaysAndItsTargetIsWritten) {
  put("target", "old", 0600);
  fs::create_directory(path("links"));
  fs::create_symlink("../target", path("links/relative"));
  fs::create_symlink(path("links/relative"), path("absolute"));
  EXPECT_TRUE(publish_file(path("absolute"), "new").ok);
  EXPECT_TRUE(S_ISLNK(mode(path("absolute"))));
  EXPECT_TRUE(S_ISLNK(mode(path("links/relative"))));
  EXPECT_EQ(contents(path("target")), "new");
  EXPECT_EQ(mode(path("target")) & 07777, 0600U);
}

TEST_F(PublishFile, ASymlinkToNothingOrInACircleIsRefused) {
  fs::create_symlink(path("absent"), path("dangling"));
  expect_refused("dangling", "absent");
  fs::create_symlink(path("b"), path("a"));
  fs::create_symlink(path("a"), path("b"));
  expect_refused("a", "circle");
}

TEST_F(PublishFile, AnOpenFileOfAProcessIsRefused) {
  put("open", "old", 0600);
  const int file = ::open(path("open").c_str(), O_RDONLY | O_CLOEXEC);
  fs::create_symlink("/proc/self/fd/" + std::to_string(file), path("link"));
  expect_refused("link", "open file of a process");
  EXPECT_EQ(contents(path("open")), "old");
  ::close(file);
}

// What fs.protected_symlinks asks of whoever follows a link.
class PublishThroughLinks : public PublishFile {
 protected:
  static constexpr uid_t kStranger = 65533, kOther = 65532;

  PublishThroughLinks() {
    put("precious", "old", 0600);
    fs::create_directory(path("shared"));
    fs::create_symlink("../precious", path("shared/link"));
  }
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make files of others";
  }
  Support publish(mode_t folder_mode, uid_t folder_owner, uid_t link_owner) const {
    EXPECT_EQ(::chown(path("shared").c_str(), folder_owner, 0), 0);
    EXPECT_EQ(::chmod(path("shared").c_str(), folder_mode), 0);
    EXPECT_EQ(::lchown(path("shared/link").c_str(), link_owner, 0), 0);
    return publish_file(path("shared/link"), "new");
  }
};

TEST_F(PublishThroughLinks, OfAStrangerInAStickyFolderAreRefused) {
  for (const uid_t owner : {uid_t{0}, kOther}) {
    const Support written = publish(01777, owner, kStranger);
    EXPECT_FALSE(written.ok);
    EXPECT_THAT(written.reason, HasSubstr("user 65533"));
    EXPECT_EQ(contents(path("precious")), "old");
    EXPECT_TRUE(S_ISLNK(mode(path("shared/link"))));
  }
}

TEST_F(PublishThroughLinks, OfOnesOwnOrTheFoldersOwnerAreFollowed) {
  EXPECT_TRUE(publish(01777, kStranger, 0).ok);
  EXPECT_TRUE(publish(01777, kStranger, kStranger).ok);
  EXPECT_EQ(contents(path("precious")), "new");
}

TEST_F(PublishThroughLinks, AreFollowedWhereNotEverybodyMayPlantThem) {
  for (const mode_t folder_mode : {0755U, 0777U, 01755U, 01775U}) {
    EXPECT_TRUE(publish(folder_mode, 0, kStranger).ok) << folder_mode;
  }
}

class PendingFileTest : public PublishFile {
 protected:
  // Holds the text until it is published.
  std::unique_ptr<PendingFile> pending(std::string_view text) const {
    Support support;
    auto file = PendingFile::make(folder_, support);
    EXPECT_TRUE(support.ok) << support.reason;
    EXPECT_EQ(::write(file->number(), text.data(), text.size()), std::ssize(text));
    return file;
  }
};

TEST_F(PendingFileTest, HasNoNameThatAKilledProcessWouldLeave) {
  const int unnamed = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (unnamed < 0) GTEST_SKIP() << "the file system of " << folder_ << " has no O_TMPFILE";
  ::close(unnamed);
  const auto file = pending("new");
  EXPECT_EQ(files(), 0);
  EXPECT_TRUE(file->publish("named").ok);
  EXPECT_EQ(contents(path("named")), "new");
  EXPECT_EQ(files(), 1);
}

TEST_F(PendingFileTest, LeavesNothingWhereItIsNotPublished) {
  pending("new");
  EXPECT_EQ(files(), 0);
}

TEST_F(PendingFileTest, TakesTheNameAndPermissionsOfAnother) {
  put("known", "old", 0640);
  EXPECT_TRUE(pending("new")->publish("known").ok);
  EXPECT_EQ(contents(path("known")), "new");
  EXPECT_EQ(mode(path("known")) & 07777, 0640U);
  EXPECT_EQ(files(), 1);
}

TEST_F(PendingFileTest, TakesTheNameOfALinkAndLeavesItsTarget) {
  put("target", "old", 0600);
  fs::create_symlink("target", path("link"));
  EXPECT_TRUE(pending("new")->publish("link").ok);
  EXPECT_EQ(contents(path("target")), "old");
  EXPECT_TRUE(S_ISREG(mode(path("link"))));
}

TEST_F(PendingFileTest, LeavesAloneWhatIsNoFile) {
  fs::create_directory(path("folder"));
  const Support published = pending("new")->publish("folder");
  EXPECT_THAT(published.reason, HasSubstr("a folder"));
  EXPECT_EQ(files(), 1);
}

TEST_F(PublishFile, AnAbsentFolderIsRefused) {
  expect_refused("absent/file", "folder exists");
  expect_refused("", "file name");
}

TEST_F(PublishFile, AFullDiskLeavesTheOldFile) {
  put("known", "old", 0600);
  // A limit on sizes of files does what a full disk would.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto signal_before = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Support written = publish_file(path("known"), std::string(100000, 'n'));
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, signal_before);
  EXPECT_FALSE(written.ok);
  EXPECT_THAT(written.reason, HasSubstr("large"));
  EXPECT_EQ(contents(path("known")), "old");
  EXPECT_EQ(files(), 1);
}

TEST_F(PublishFile, ConcurrentWritersLeaveOneOfTheirFilesWhole) {
  put("shared", "old", 0600);
  const auto text = [](int64_t writer) {
    return std::string(50000, static_cast<char>('a' + writer));
  };
  parallel_for_each(
      256,
      [&](int64_t i) {
        const Support written = publish_file(path("shared"), text(i % 8));
        EXPECT_TRUE(written.ok) << written.reason;
        const std::string seen = contents(path("shared"));
        EXPECT_EQ(seen, seen == "old" ? seen : std::string(50000, seen.at(0)));
      },
      8);
  EXPECT_EQ(contents(path("shared")).size(), 50000U);
  EXPECT_EQ(files(), 1);
}

}  // namespace
}  // namespace tenon
