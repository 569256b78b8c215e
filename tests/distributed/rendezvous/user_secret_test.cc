#include "distributed/rendezvous/user_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "base/error.h"
#include "ranks.h"

namespace tenon::distributed {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class UserSecret : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "user-secret-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    fs::create_directory(folder_ / "run");
    fs::permissions(folder_ / "run", fs::perms::owner_all);
    folders_ = {.runtime = folder_ / "run", .cache = folder_ / "cache" / "tenon"};
    in_runtime_ = folder_ / "run" / "tenon" / "rank-secret";
    in_cache_ = folder_ / "cache" / "tenon" / "rank-secret";
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string error() {
    try {
      (void)user_secret(folders_);
      return "no error";
    } catch (const UserError& error) {
      return error.what();
    }
  }
  static mode_t mode_of(const fs::path& path) {
    struct stat known {};
    EXPECT_EQ(::stat(path.c_str(), &known), 0) << path;
    return known.st_mode & 07777;
  }
  static void write(const fs::path& path, const std::string& bytes, mode_t mode = 0600) {
    fs::create_directories(path.parent_path());
    ::chmod(path.parent_path().c_str(), 0700);
    std::ofstream(path) << bytes;
    ::chmod(path.c_str(), mode);
  }
  // Only the cache folder is there to be used.
  void without_runtime_folder() { folders_.runtime = ""; }

  fs::path folder_, in_runtime_, in_cache_;
  SecretFolders folders_;
};

TEST_F(UserSecret, IsMadeOnceForItsOwnerAlone) {
  const Digest first = user_secret(folders_);
  EXPECT_EQ(user_secret(folders_), first);
  EXPECT_NE(first, Digest{});
  EXPECT_EQ(mode_of(in_runtime_), 0600);
  EXPECT_EQ(mode_of(in_runtime_.parent_path()), 0700);
  EXPECT_EQ(fs::file_size(in_runtime_), first.size());
  EXPECT_EQ(std::distance(fs::directory_iterator(in_runtime_.parent_path()), {}), 1)
      << "nothing stays behind";
  EXPECT_FALSE(fs::exists(folders_.cache));
  fs::remove(in_runtime_);
  EXPECT_NE(user_secret(folders_), first) << "it is random";
}

TEST_F(UserSecret, ConcurrentProcessesGetOne) {
  for (int round = 0; round < 20; ++round) {
    std::vector<Digest> found(8);
    std::vector<std::thread> threads;
    for (Digest& secret : found) threads.emplace_back([&] { secret = user_secret(folders_); });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::set<Digest>(found.begin(), found.end()).size(), 1);
    fs::remove(in_runtime_);
  }
}

TEST_F(UserSecret, LiesInTheCacheFolderWhereTheRuntimeFolderIsNotTheUsers) {
  for (const std::string& unusable : {std::string(), (folder_ / "gone").string()}) {
    folders_.runtime = unusable;
    const Digest secret = user_secret(folders_);
    EXPECT_EQ(mode_of(in_cache_), 0600);
    EXPECT_EQ(mode_of(in_cache_.parent_path()), 0700);
    EXPECT_EQ(user_secret(folders_), secret);
  }
  EXPECT_FALSE(fs::exists(folder_ / "gone")) << "a runtime folder is the system's to make";
  folders_.runtime = folder_ / "run";
  fs::permissions(folder_ / "run", fs::perms::all);
  (void)user_secret(folders_);
  EXPECT_FALSE(fs::exists(in_runtime_));
  if (::geteuid() != 0) return;  // only root can give a folder away
  fs::permissions(folder_ / "run", fs::perms::owner_all);
  ASSERT_EQ(::chown((folder_ / "run").c_str(), 12'345, 12'345), 0);
  (void)user_secret(folders_);
  EXPECT_FALSE(fs::exists(in_runtime_));
}

TEST_F(UserSecret, IsNotTakenFromWhatOthersCouldHaveWrittenOrRead) {
  without_runtime_folder();
  const std::string bytes(32, 'x');
  for (const mode_t mode : {0640, 0604, 0660, 0602}) {
    write(in_cache_, bytes, mode);
    EXPECT_THAT(error(), AllOf(HasSubstr(in_cache_.string()), HasSubstr("others may"))) << mode;
  }
  write(in_cache_, bytes);
  EXPECT_EQ(error(), "no error");
  fs::permissions(in_cache_.parent_path(), fs::perms::group_write, fs::perm_options::add);
  EXPECT_THAT(error(), HasSubstr("others may write to it"));
  if (::geteuid() != 0) return;  // only root can give a file away
  write(in_cache_, bytes);
  ASSERT_EQ(::chown(in_cache_.c_str(), 12'345, 12'345), 0);
  EXPECT_THAT(error(), HasSubstr("it belongs to another user"));
}

TEST_F(UserSecret, IsARegularFileOfItsLength) {
  without_runtime_folder();
  for (const size_t length : {0, 31, 33}) {
    write(in_cache_, std::string(length, 'x'));
    EXPECT_THAT(error(), HasSubstr("it has " + std::to_string(length) + " bytes")) << length;
  }
  fs::rename(in_cache_, folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", in_cache_);
  EXPECT_THAT(error(), HasSubstr("it is a symlink"));
  fs::remove(in_cache_);
  ASSERT_EQ(::mkfifo(in_cache_.c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("it is not a regular file"));
  fs::remove_all(in_cache_.parent_path());
  fs::create_directory(folder_ / "real");
  fs::create_directory_symlink(folder_ / "real", in_cache_.parent_path());
  EXPECT_THAT(error(), HasSubstr("it is a symlink: name the folder itself"));
}

TEST_F(UserSecret, WithoutAFolderATokenIsAskedFor) {
  without_runtime_folder();
  folders_.cache = "";
  EXPECT_THAT(error(),
              AllOf(HasSubstr("HOME is not set"), HasSubstr("collective_token"),
                    HasSubstr("openssl rand -hex 32"), HasSubstr("collective_token=none")));
  write(folder_ / "file", "");
  folders_.cache = folder_ / "file" / "tenon";
  EXPECT_THAT(error(), AllOf(HasSubstr("it cannot be made"), HasSubstr("collective_token=none")));
}

TEST_F(UserSecret, MakesTokensThatOthersDoNotKnow) {
  LaunchPlace place;
  place.size = 2;
  place.token = sha256("job");
  EXPECT_EQ(with_user_secret(place, folders_).token, place.token) << "somebody gave it";
  EXPECT_FALSE(fs::exists(in_runtime_));
  place.needs_user_secret = true;
  const JobToken token = with_user_secret(place, folders_).token;
  EXPECT_NE(token, place.token);
  EXPECT_EQ(with_user_secret(place, folders_).token, token);
  LaunchPlace other = place;
  other.token = sha256("another job");
  EXPECT_NE(with_user_secret(other, folders_).token, token);
  fs::remove(in_runtime_);
  EXPECT_NE(with_user_secret(place, folders_).token, token) << "another user";
  other.size = 1;
  EXPECT_EQ(with_user_secret(other, {}).token, other.token) << "one rank needs none";
}

// Another user sees the launcher's variables and knows the source.
TEST_F(UserSecret, ConcurrentRanksLetNobodyInByWhatCanBeSeen) {
  const char* const before = std::getenv("XDG_RUNTIME_DIR");
  const std::string kept = before ? before : "";
  ::setenv("XDG_RUNTIME_DIR", folders_.runtime.c_str(), 1);
  const std::string address = "127.0.0.1:" + std::to_string(free_ports(1).front());
  std::vector<LaunchPlace> places;
  for (int rank = 0; rank < 2; ++rank) {
    places.push_back(
        launch_place({.rank = rank, .size = 2, .address = address, .token = ""}, {}, ::getuid()));
  }
  LaunchPlace impostor = places[1];
  impostor.needs_user_secret = false;
  const Work work = [](Store& store) {
    const auto said = store.all_gather("who", "rank " + std::to_string(store.rank()));
    return said[0] + ", " + said[1];
  };
  std::string heard;
  std::thread first([&] { heard = run_rank(places[0], work); });
  EXPECT_THAT(run_rank(impostor, work, seconds(2)), HasSubstr("another job token"));
  EXPECT_EQ(run_rank(places[1], work), "rank 0, rank 1");
  first.join();
  EXPECT_EQ(heard, "rank 0, rank 1");
  before ? ::setenv("XDG_RUNTIME_DIR", kept.c_str(), 1) : ::unsetenv("XDG_RUNTIME_DIR");
}

TEST_F(UserSecret, FoldersAreThoseOfTheVariables) {
  const char* const names[] = {"XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME"};
  std::vector<std::optional<std::string>> before;
  for (const char* name : names) {
    const char* value = std::getenv(name);
    before.push_back(value ? std::optional<std::string>(value) : std::nullopt);
    ::unsetenv(name);
  }
  EXPECT_EQ(secret_folders().cache, "");
  ::setenv("HOME", "/home/a", 1);
  EXPECT_EQ(secret_folders().cache, "/home/a/.cache/tenon");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(secret_folders().cache, "/home/a/.cache/tenon");
  ::setenv("XDG_CACHE_HOME", "/cache", 1);
  ::setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
  EXPECT_EQ(secret_folders().cache, "/cache/tenon");
  EXPECT_EQ(secret_folders().runtime, "/run/user/1");
  for (size_t i = 0; i < before.size(); ++i) {
    before[i] ? ::setenv(names[i], before[i]->c_str(), 1) : ::unsetenv(names[i]);
  }
}

}  // namespace
}  // namespace tenon::distributed
