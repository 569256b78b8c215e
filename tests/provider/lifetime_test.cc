// Threads, leaks and exit.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "harness.h"
#include "quantized_weight.h"

namespace tenon::testing {
namespace {

// Enough kinds of kernels to share state wrongly: products, norm, softmax, pointwise, movement.
std::string mixed_model() {
  const Nvfp4Weight up(64, 32, 1), down(32, 64, 2);
  Graph graph;
  graph.input("x", kFloat, {"M", 32});
  up.add_to(graph, "up");
  down.add_to(graph, "down");
  graph.constant("gain", random_floats({64}, 3)).constant("shift", random_floats({64}, 4));
  graph.node("MatMul", {"x", "up"}, {"h"}).node("Gelu", {"h"}, {"g"});
  graph.node("LayerNormalization", {"g", "gain", "shift"}, {"n"}, {{{"axis", -1}}});
  graph.node("MatMul", {"n", "down"}, {"z"}).node("Softmax", {"z"}, {"p"});
  graph.node("Transpose", {"p"}, {"y"}).output("y", kFloat, {32, "M"});
  return model(graph);
}

void in_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

TEST(Lifetime, ConcurrentRunsGiveTheSameBits) {
  const Session session(mixed_model(), {}, {.cpu_fallback = false});
  std::vector<Tensor> inputs, expected;
  for (int i = 0; i < 8; ++i) {
    inputs.push_back(random_floats({1 + 3 * i, 32}, static_cast<unsigned>(i)));
    expected.push_back(session.run({{"x", inputs.back()}}).at(0));
  }
  std::atomic<int> different = 0;
  in_threads(8, [&](int thread) {
    for (int i = 0; i < 200; ++i) {
      const auto which = static_cast<size_t>((thread + i) % 8);
      if (session.run({{"x", inputs[which]}}).at(0).bytes != expected[which].bytes) ++different;
    }
  });
  EXPECT_EQ(different, 0);
}

TEST(Lifetime, ConcurrentSessionCreationGivesTheSameBits) {
  const std::string bytes = mixed_model();
  const Tensor x = random_floats({5, 32});
  const std::string expected = Session(bytes).run({{"x", x}}).at(0).bytes;
  std::atomic<int> different = 0;
  in_threads(8, [&](int) {
    for (int i = 0; i < 3; ++i) {
      if (Session(bytes).run({{"x", x}}).at(0).bytes != expected) ++different;
    }
  });
  EXPECT_EQ(different, 0);
}

TEST(Lifetime, ThreadCountsGiveTheSameBits) {
  const Tensor x = random_floats({37, 32});
  const std::string one = Session(mixed_model(), {}, {.threads = 1}).run({{"x", x}}).at(0).bytes;
  const std::string four = Session(mixed_model(), {}, {.threads = 4}).run({{"x", x}}).at(0).bytes;
  EXPECT_EQ(one, four);
}

// A status line of this process, in KiB or as a plain number.
long process_figure(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::stol(line.substr(key.size() + 1));
  }
  return 0;
}

// Sanitizers keep freed memory on purpose and look for leaks themselves.
void expect_growth_within(long kib, long before) {
  if (kSanitizer) return;
  EXPECT_LE(process_figure("VmRSS") - before, kib) << "KiB";
}

TEST(Lifetime, SessionsComeAndGoWithoutLeaks) {
  const std::string bytes = mixed_model();
  const Tensor x = random_floats({3, 32});
  const auto use = [&] { Session(bytes).run({{"x", x}}); };
  const int sessions = kSanitizer ? 10 : 100;
  for (int i = 0; i < sessions / 3; ++i) use();
  const long before = process_figure("VmRSS"), threads = process_figure("Threads");
  for (int i = 0; i < sessions; ++i) use();
  EXPECT_EQ(process_figure("Threads"), threads);
  expect_growth_within(8 << 10, before);
}

TEST(Lifetime, WarmRunsKeepTheirMemory) {
  const Session session(mixed_model());
  const Tensor x = random_floats({16, 32});
  for (int i = 0; i < 100; ++i) session.run({{"x", x}});
  const long before = process_figure("VmRSS");
  for (int i = 0; i < (kSanitizer ? 500 : 5000); ++i) session.run({{"x", x}});
  expect_growth_within(1 << 10, before);
}

[[noreturn]] void exit_with_a_live_session() {
  static const Session* const session = new Session(mixed_model());
  const bool right = session->run({{"x", random_floats({2, 32})}}).at(0).elements() == 64;
  std::exit(right ? 0 : 1);
}

TEST(LifetimeDeathTest, ExitWithALiveSessionIsClean) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_live_session(), ::testing::ExitedWithCode(0), "");
}

[[noreturn]] void release_in_every_order() {
  auto* session = new Session(mixed_model());
  session->run({{"x", random_floats({2, 32})}});
  delete session;
  env().UnregisterExecutionProviderLibrary(kTenon);
  env().RegisterExecutionProviderLibrary(kTenon, plugin_path());
  Session(mixed_model()).run({{"x", random_floats({2, 32})}});
  std::exit(0);
}

TEST(LifetimeDeathTest, RegisteringAgainAfterASessionWorks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(release_in_every_order(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tenon::testing
