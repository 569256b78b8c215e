#include "kernels/device/vendor_library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace tenon::device {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kFake = TENON_FAKE_VENDOR_LIBRARY;

// Sets a variable for one test.
class Environment {
 public:
  Environment(const char* name, const char* value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value, 1);
  }
  ~Environment() { old_ ? setenv(name_, old_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// The kernel says so of a process whose user is not the one that started it.
TEST(NamedInEnvironment, IsEmptyWithMoreRightsThanTheCallers) {
  const Environment set("TENON_NAMED_LIBRARY", "theirs.so");
  const bool has_more_rights = ::getauxval(AT_SECURE) != 0;
  EXPECT_EQ(named_in_environment("TENON_NAMED_LIBRARY"), has_more_rights ? "" : "theirs.so");
  EXPECT_EQ(named_in_environment("TENON_NO_SUCH_VARIABLE"), "");
  if (has_more_rights) return;
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start a process with more rights";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, 0, 0) != 0) ::_exit(2);
    ::execl("/proc/self/exe", "test", "--gtest_filter=NamedInEnvironment.*", nullptr);
    ::_exit(3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(VendorLibraryTest, FindsFunctionsAndVersions) {
  const VendorAnswer answer = open_vendor_library(std::vector{kFake});
  ASSERT_TRUE(answer.library) << answer.why;
  EXPECT_EQ(answer.library->path(), kFake);
  int (*add)(int, int) = nullptr;
  ASSERT_TRUE(answer.library->find("fakeAdd", add));
  EXPECT_EQ(add(2, 3), 5);
  EXPECT_FALSE(answer.library->find("fakeSubtract", add));
  EXPECT_EQ(add, nullptr);
  EXPECT_EQ(answer.library->version("fakeGetVersion"), 12034);
  EXPECT_EQ(answer.library->version("fakeRefusesVersion"), std::nullopt);
  EXPECT_EQ(answer.library->version("fakeHasNoSuchFunction"), std::nullopt);
}

TEST(VendorLibraryTest, EveryNameThatIsNotThereIsAReason) {
  const VendorAnswer answer =
      open_vendor_library(std::vector<std::string>{"libtenon_none.so.2", "libtenon_none.so.1"});
  EXPECT_FALSE(answer.library);
  EXPECT_THAT(answer.why,
              AllOf(HasSubstr("libtenon_none.so.2: "), HasSubstr("; libtenon_none.so.1: ")));
}

TEST(VendorLibraryTest, AFileThatIsNoLibraryIsAReasonAndAnAbsentOneIsNot) {
  const VendorAnswer answer = open_vendor_library(
      std::vector<std::string>{"/nowhere/libtenon_none.so", "tests/layering_test.py", kFake},
      [](const VendorLibrary&) { return "is too old"; });
  EXPECT_FALSE(answer.library);
  EXPECT_THAT(answer.why,
              AllOf(HasSubstr("tests/layering_test.py"), HasSubstr("; " + kFake + " is too old"),
                    Not(HasSubstr("nowhere"))));
}

TEST(VendorLibraryTest, TheOnlyPathSaysWhyEvenWhereItIsAbsent) {
  const VendorAnswer answer = open_vendor_library(std::vector<std::string>{"/nowhere/libnone.so"});
  EXPECT_THAT(answer.why, HasSubstr("/nowhere/libnone.so"));
}

TEST(VendorLibraryTest, TheNextOneIsTakenWhereTheFirstWillNotDo) {
  int asked = 0;
  const VendorAnswer answer = open_vendor_library(
      std::vector{kFake, kFake},
      [&](const VendorLibrary&) { return ++asked == 1 ? "has no function f" : ""; });
  EXPECT_TRUE(answer.library);
  EXPECT_EQ(answer.why, "");
  EXPECT_EQ(asked, 2);
}

TEST(VendorLibraryTest, LooksInTheListedFoldersThenInThoseOfCuda) {
  const Environment listed("TENON_LIBRARY_DIRS", "/a:/b"), home("CUDA_HOME", "/opt/cuda");
  EXPECT_THAT(
      vendor_library_paths(std::vector<std::string>{"libx.so.2", "libx.so.1"}),
      ElementsAre("libx.so.2", "/a/libx.so.2", "/b/libx.so.2", "/opt/cuda/lib64/libx.so.2",
                  "/usr/local/cuda/lib64/libx.so.2", "libx.so.1", "/a/libx.so.1", "/b/libx.so.1",
                  "/opt/cuda/lib64/libx.so.1", "/usr/local/cuda/lib64/libx.so.1"));
}

TEST(VendorLibraryTest, OpensWhatAListedFolderHolds) {
  const std::filesystem::path fake = kFake;
  const Environment listed("TENON_LIBRARY_DIRS", fake.parent_path().c_str());
  const VendorAnswer answer =
      open_vendor_library(vendor_library_paths(std::vector<std::string>{fake.filename().string()}));
  ASSERT_TRUE(answer.library) << answer.why;
  EXPECT_EQ(answer.library->path(), kFake);
}

}  // namespace
}  // namespace tenon::device
