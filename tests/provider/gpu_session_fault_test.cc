// What the driver can do to a session: memory that runs out, errors for good, streams that hang.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "harness.h"
#include "quantized_weight.h"
#include "stub_driver.h"

namespace tenon::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr Settings kOnGpu{.cpu_fallback = false, .gpu = 0};
constexpr int kMostCalls = 200;
const Options kClaimAll = {{"claim", "all"}};

const bool stub_is_used = (use_stub_driver("devices 1"), true);

class GpuFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    env();
    stub_reset();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  void TearDown() override { EXPECT_EQ(stub_reports(), ""); }
};

// Intermediate results, weights, more than one kernel; quick to compile for the stub.
std::string chain_model() {
  Graph graph;
  graph.input("x", kFloat, {"M", 64}).constant("gain", random_floats({64}, 2));
  graph.node("Softmax", {"x"}, {"p"}).node("Mul", {"p", "gain"}, {"h"});
  graph.node("Transpose", {"h"}, {"t"}).node("Softmax", {"t"}, {"y"});
  return model(graph.output("y", kFloat, {64, "M"}));
}

const Tensor& input() {
  static const auto* const x = new Tensor(random_floats({3, 64}, 7));
  return *x;
}

// What Runs must give, from a session that nothing happened to.
std::string expected() {
  return Session(chain_model(), kClaimAll, kOnGpu).run({{"x", input()}}).at(0).bytes;
}

// Lets each call of `function` fail once while a session is made and run, until none does.
void fail_each_call(const std::string& function, int code, const char* message) {
  const std::string right = expected();
  int failures = 0;
  for (int call = 1; call <= kMostCalls; ++call) {
    stub_reset();
    stub_script("fail " + function + " " + std::to_string(call) + " " + std::to_string(code));
    std::string failure;
    try {
      const Session session(chain_model(), kClaimAll, kOnGpu);
      try {
        session.run({{"x", input()}});
      } catch (const std::exception& error) {
        failure = error.what();
      }
      stub_script("");
      EXPECT_EQ(session.run({{"x", input()}}).at(0).bytes, right) << function << " " << call;
    } catch (const std::exception& error) {
      failure = error.what();
    }
    if (failure.empty()) break;  // nobody made this many calls
    ++failures;
    EXPECT_THAT(failure, HasSubstr(message)) << function << " " << call;
  }
  EXPECT_GT(failures, 0) << function << " was never called";
  EXPECT_LT(failures, kMostCalls);
  stub_reset();
  EXPECT_EQ(expected(), right);
}

TEST_F(GpuFaults, MemoryThatRunsOutLeavesTheSessionUsable) {
  fail_each_call("cuMemAlloc_v2", 2, "memory");
}

TEST_F(GpuFaults, ALaunchThatFailsLeavesTheSessionUsable) {
  fail_each_call("cuLaunchKernel", 701, "");
}

TEST_F(GpuFaults, AModuleThatDoesNotLoadIsAnErrorOfTheSession) {
  fail_each_call("cuModuleLoadDataEx", 218, "");
}

TEST_F(GpuFaults, AStreamThatCannotBeMadeIsAnError) {
  fail_each_call("cuStreamCreate", 2, "memory");
}

[[noreturn]] void lose_the_device() {
  const Session gpu(chain_model(), kClaimAll, kOnGpu);
  const Session cpu(chain_model());
  const std::string right = gpu.run({{"x", input()}}).at(0).bytes;
  stub_script("sticky cuLaunchKernel 1 700");
  for (int i = 0; i < 3; ++i) {
    try {
      gpu.run({{"x", input()}});
      std::exit(1);
    } catch (const std::exception&) {
    }
  }
  try {
    Session(chain_model(), kClaimAll, kOnGpu);
    std::exit(2);
  } catch (const std::exception&) {
  }
  cpu.run({{"x", input()}});
  Session(chain_model()).run({{"x", input()}});
  std::exit(0);
}

TEST_F(GpuFaults, AnErrorForGoodEndsSessionsOfTheGpuOnly) {
  EXPECT_EXIT(lose_the_device(), ::testing::ExitedWithCode(0), "");
}

[[noreturn]] void wait_in_vain() {
  const Session session(chain_model(), {{"claim", "all"}, {"run_deadline_ms", "200"}}, kOnGpu);
  stub_script("hang_stream 1");
  try {
    session.run({{"x", input()}});
  } catch (const std::exception& error) {
    std::_Exit(std::string(error.what()).find("200") != std::string::npos ? 0 : 3);
  }
  std::_Exit(1);
}

TEST_F(GpuFaults, AStreamThatNeverEndsMeetsTheDeadline) {
  EXPECT_EXIT(wait_in_vain(), ::testing::ExitedWithCode(0), "");
}

TEST_F(GpuFaults, RegistersAndUnregistersAHundredTimes) {
  const size_t before = tenon_devices(env()).size();
  for (int i = 0; i < 100; ++i) {
    env().RegisterExecutionProviderLibrary("again", plugin_path());
    ASSERT_EQ(tenon_devices(env()).size(), before + 2) << "round " << i;
    env().UnregisterExecutionProviderLibrary("again");
  }
  EXPECT_EQ(expected(), expected());
}

[[noreturn]] void exit_with_a_live_session() {
  static const Session* const session = new Session(chain_model(), kClaimAll, kOnGpu);
  const bool right = session->run({{"x", input()}}).at(0).elements() == 192;
  std::exit(right ? 0 : 1);
}

TEST_F(GpuFaults, ExitWithALiveSessionIsClean) {
  EXPECT_EXIT(exit_with_a_live_session(), ::testing::ExitedWithCode(0), "");
}

TEST_F(GpuFaults, SessionsGiveTheirMemoryBack) {
  expected();
  const std::string before = stub_leaks();
  for (int i = 0; i < 20; ++i) expected();
  EXPECT_EQ(stub_leaks(), before);
}

// Exits with the number of devices, after a session on the CPU.
[[noreturn]] void count_devices(const char* script) {
  use_stub_driver(script);
  const size_t devices = tenon_devices(env()).size();
  Session(chain_model()).run({{"x", input()}});
  std::exit(static_cast<int>(devices));
}

// In processes of their own: a driver is loaded once.
TEST(GpuFaultsDeathTest, ADriverOfNoUseLeavesTheCpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const char* script : {"driver_version 11080", "devices 0", "drop cuGraphLaunch",
                             "fail cuInit 1+ 999", "fail cuDeviceGetCount 1+ 999"}) {
    EXPECT_EXIT(count_devices(script), ::testing::ExitedWithCode(1), "") << script;
  }
}

TEST(GpuFaultsDeathTest, AtMostSevenGpusAreOfferedBesideTheCpu) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(count_devices("devices 9"), ::testing::ExitedWithCode(8), "");
}

}  // namespace
}  // namespace tenon::testing
