// Sessions with cache_dir on a GPU that the stub driver plays. Kernels in memory are the process's:
// what the next process finds on disk, a process of its own must tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"
#include "product_model.h"
#include "quantized_weight.h"
#include "stub_driver.h"

namespace tenon::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

constexpr const char* kFolder = "TENON_TEST_CACHE_DIR";
constexpr const char* kReport = "TENON_TEST_REPORT";
constexpr Settings kOnGpu{.cpu_fallback = false, .log_level = ORT_LOGGING_LEVEL_WARNING, .gpu = 0};

const bool stub_is_used = (use_stub_driver("devices 1; arch 9.0"), true);

// Runs a model on the stub and compares with the CPU; leaves the report.
TEST(DISABLED_KernelCacheSession, Child) {
  const Options options = {{"cache_dir", std::getenv(kFolder)},
                           {"report_file", std::getenv(kReport)}};
  const Session gpu(product_model(), options, kOnGpu);
  const Session cpu(product_model(), {{"claim", "all"}});
  const Tensor x = random_floats({7, 64}, 3);
  const Tensor actual = gpu.run({{"x", x}}).at(0), expected = cpu.run({{"x", x}}).at(0);
  for (int64_t i = 0; i < expected.elements(); ++i) {
    ASSERT_NEAR(actual.at(static_cast<size_t>(i)), expected.at(static_cast<size_t>(i)), 1e-5);
  }
  EXPECT_EQ(stub_reports(), "");
}

class KernelCacheSession : public ::testing::Test {
 protected:
  pid_t start(const std::string& report) const {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv(kFolder, cache_.c_str(), 1);
    ::setenv(kReport, folder_.path(report).c_str(), 1);
    ::execl("/proc/self/exe", "child", "--gtest_also_run_disabled_tests", "--gtest_brief=1",
            "--gtest_filter=DISABLED_KernelCacheSession.Child", nullptr);
    ::_exit(127);
  }
  Json finish(pid_t child, const std::string& report) const {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    return Json::parse(read_file(folder_.path(report))).at("cache");
  }
  // What a new process's report tells of the cache.
  Json in_new_process() const { return finish(start("report.json"), "report.json"); }

  // Damages every entry.
  template <typename Damage>
  int damage(const Damage& damage) const {
    int count = 0;
    for (const auto& file : fs::directory_iterator(cache_)) {
      damage(file.path());
      ++count;
    }
    return count;
  }

  TemporaryFolder folder_;
  std::string cache_ = folder_.path("cache");
};

TEST_F(KernelCacheSession, ASecondProcessCompilesNothing) {
  const Json cold = in_new_process(), warm = in_new_process();
  EXPECT_EQ(cold["folder"], cache_);
  EXPECT_EQ(cold["ptx"]["hits"], 0);
  EXPECT_GT(cold["ptx"]["misses"], 0);
  EXPECT_EQ(warm["ptx"]["hits"], cold["ptx"]["misses"]);
  EXPECT_EQ(warm["ptx"]["misses"], 0);
  EXPECT_THAT(warm["problems"], IsEmpty());
  struct stat known {};
  ASSERT_EQ(::stat(cache_.c_str(), &known), 0);
  EXPECT_EQ(known.st_mode & 07777, 0700U);
}

TEST_F(KernelCacheSession, ProcessesAtOnceWriteTheSameEntries) {
  const pid_t one = start("one.json"), other = start("other.json");
  for (const auto& [child, report] : {std::pair{one, "one.json"}, {other, "other.json"}}) {
    EXPECT_THAT(finish(child, report)["problems"], IsEmpty());
  }
  EXPECT_EQ(in_new_process()["ptx"]["misses"], 0);
}

TEST_F(KernelCacheSession, DamagedEntriesAreCompiledAnewWithTheReason) {
  const Json cold = in_new_process();
  const auto expect_mended = [&](const std::string& reason) {
    const Json mending = in_new_process();
    EXPECT_EQ(mending["ptx"]["misses"], cold["ptx"]["misses"]);
    ASSERT_EQ(mending["problems"].size(), 1U) << mending.dump();
    EXPECT_THAT(mending["problems"][0].get<std::string>(), HasSubstr(reason));
    EXPECT_EQ(in_new_process()["ptx"]["misses"], 0);
  };
  EXPECT_GT(damage([](const fs::path& path) { fs::resize_file(path, fs::file_size(path) - 1); }),
            0);
  expect_mended("length");
  damage([](const fs::path& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end).put('!');
  });
  expect_mended("SHA-256");
  damage([&](const fs::path& path) {
    const fs::path outside = folder_.path("outside-" + path.filename().string());
    fs::rename(path, outside);
    fs::create_symlink(outside, path);
  });
  expect_mended("symlink");
}

TEST_F(KernelCacheSession, AFolderThatIsRefusedIsWarnedOfAndTheSessionRuns) {
  const auto refused = [&](const std::string& folder) {
    take_log();
    const Session session(product_model(), {{"cache_dir", folder}}, kOnGpu);
    const Tensor x = random_floats({3, 64}, 3);
    EXPECT_EQ(session.run({{"x", x}}).at(0).dims, (std::vector<int64_t>{3, 32}));
    return take_log();
  };
  fs::create_directory(cache_);
  ASSERT_EQ(::chmod(cache_.c_str(), 0777), 0);
  EXPECT_THAT(refused(cache_), Contains(HasSubstr("others may write")));
  EXPECT_TRUE(fs::is_empty(cache_));
  ASSERT_EQ(::chmod(cache_.c_str(), 0700), 0);
  fs::create_directory_symlink(cache_, folder_.path("link"));
  EXPECT_THAT(refused(folder_.path("link")), Contains(HasSubstr("symlink")));
  EXPECT_THAT(refused("/proc/self/tenon"), Contains(HasSubstr("cannot be made")));
}

TEST_F(KernelCacheSession, IsOffUnlessGiven) {
  for (const Options& options : {Options{}, Options{{"cache_dir", ""}}}) {
    Options reported = options;
    reported["report_file"] = folder_.path("report.json");
    const Session session(product_model(), reported, kOnGpu);
    EXPECT_TRUE(Json::parse(read_file(folder_.path("report.json"))).at("cache").is_null());
  }
}

TEST_F(KernelCacheSession, HostCodeIsNotKept) {
  take_log();
  const Session session(product_model(), {{"claim", "all"}, {"cache_dir", cache_}},
                        {.log_level = ORT_LOGGING_LEVEL_WARNING});
  EXPECT_THAT(take_log(), Contains(HasSubstr("cache_dir")));
  EXPECT_FALSE(fs::exists(cache_));
}

}  // namespace
}  // namespace tenon::testing
