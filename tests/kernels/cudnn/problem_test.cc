// What a call computes, as bytes and back: the same graphs, and nothing that is not sound.
#include "kernels/cudnn/problem.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "kernels/cudnn/graph_call.h"
#include "kernels/cudnn/versions.h"
#include "tests/kernels/cudnn/stub_library.h"

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;

constexpr int kVersion = 91900;

std::string bytes_of(const Problem& problem) {
  kernels::SavedWriter writer;
  write(problem, writer);
  return writer.take();
}

Problem problem_of(std::string_view bytes) {
  kernels::SavedReader reader(bytes);
  Problem problem = read_problem(reader, kVersion);
  reader.end();
  return problem;
}

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool flag() { return between(0, 1) == 1; }
  template <typename Item>
  Item of(std::initializer_list<Item> items) {
    return items.begin()[between(0, static_cast<int64_t>(items.size()) - 1)];
  }
  std::vector<int64_t> list(size_t count, int64_t least, int64_t most) {
    std::vector<int64_t> made(count);
    for (int64_t& number : made) number = between(least, most);
    return made;
  }

  WindowForm window(size_t spatial) {
    WindowForm made{list(spatial, 1, 5), list(spatial, 1, 3), list(spatial, 1, 2),
                    list(spatial, 0, 2), list(spatial, 0, 2)};
    made.auto_pad = of<const char*>({"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"});
    made.ceil_mode = flag();
    return made;
  }
  DType real() { return of({DType::kF32, DType::kF16, DType::kBF16}); }

  Convolution convolution() {
    Convolution made;
    const size_t spatial = of<size_t>({2, 3});
    made.dtype = real();
    made.window = window(spatial);
    made.filter = list(2, 1, 70);
    made.filter.insert(made.filter.end(), made.window.kernel.begin(), made.window.kernel.end());
    made.channels_last = flag();
    made.rank = spatial == 2 && !made.channels_last && flag() ? 3 : spatial + 2;
    made.has_bias = flag();
    made.has_summand = flag();
    made.has_relu = flag();
    return made;
  }
  Pooling pooling() {
    Pooling made;
    const size_t spatial = of<size_t>({2, 3});
    made.dtype = real();
    made.mode = of({kMaximum, kAverageWithPads, kAverageWithoutPads});
    made.window = window(spatial);
    made.rank = spatial == 2 && flag() ? 3 : spatial + 2;
    return made;
  }
  Sdpa sdpa() {
    Sdpa made;
    made.dtype = real();
    made.kv_heads = between(1, 9);
    made.heads = made.kv_heads * between(1, 9);
    made.depth = between(1, 300);
    made.value_depth = between(1, 300);
    made.scale = static_cast<float>(between(-1000, 1000)) / 7;
    made.band = {between(-1, 9), between(-1, 9), flag()};
    made.has_lengths = flag();
    made.version = kVersion;
    return made;
  }
  WeightDot dot() {
    WeightDot made;
    BlockScaledDot& dot = made.dot;
    const auto codes = {DType::kF4E2M1, DType::kF8E4M3FN, DType::kF8E5M2};
    const auto scales = {DType::kF8E4M3FN, DType::kF8E8M0};
    dot.a_type = of(codes);
    dot.b_type = of(codes);
    dot.scale_type = of(scales);
    dot.block = of<int64_t>({16, 32});
    dot.has_factor = flag();
    if (flag()) dot.result_scale_type = of(scales);
    dot.result = dot.has_codes() ? of(codes) : real();
    made.n = between(1, 999);
    made.k = between(1, 999);
    return made;
  }
  Problem problem() {
    switch (between(0, 3)) {
      case 0:
        return convolution();
      case 1:
        return pooling();
      case 2:
        return sdpa();
      default:
        return dot();
    }
  }

  std::vector<int64_t> sizes(const Problem& problem) {
    return list(form_of(problem).numbers - 1, 1, 40);
  }

 private:
  std::mt19937 random_;
};

TEST(CudnnProblemTest, IsReadBackAsItWas) {
  Random random(1);
  for (int i = 0; i < 2000; ++i) {
    const Problem problem = random.problem();
    const std::string bytes = bytes_of(problem);
    const Problem again = problem_of(bytes);
    EXPECT_EQ(bytes_of(again), bytes);
    EXPECT_EQ(name(again), name(problem));
    EXPECT_EQ(form_of(again).buffers, form_of(problem).buffers);
    for (int run = 0; run < 3; ++run) {
      const std::vector<int64_t> sizes = random.sizes(problem);
      const Graph graph = graph_of(again, sizes);
      ASSERT_EQ(graph.text(), graph_of(problem, sizes).text());
      const auto in_memory = std::ranges::count_if(graph.tensors, &Tensor::is_in_memory);
      ASSERT_EQ(form_of(again).buffers, static_cast<size_t>(in_memory) + 1) << graph.text();
    }
  }
}

// y, and codes' scales behind it, come last; so does the workspace.
TEST(CudnnProblemTest, SaysWhatItWrites) {
  Random random(2);
  Convolution convolution = random.convolution();
  convolution.has_bias = convolution.has_summand = true;
  EXPECT_THAT(form_of(convolution).writes(),
              testing::ElementsAre(false, false, false, false, true, true));
  WeightDot dot = random.dot();
  dot.dot.has_factor = true;
  dot.dot.result_scale_type = DType::kF8E8M0;
  EXPECT_THAT(form_of(dot).writes(),
              testing::ElementsAre(false, false, false, false, false, true, true, true));
}

// Whoever reads a problem makes graphs of it, for whatever sizes.
TEST(CudnnProblemTest, ChangedBytesAreRefusedOrMakeGraphs) {
  Random random(3);
  int refused = 0, graphs = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = bytes_of(random.problem());
    const auto at = static_cast<size_t>(random.between(0, static_cast<int64_t>(bytes.size()) - 1));
    if (i % 4 == 0)
      bytes.resize(at);
    else
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.between(0, 7)));
    try {
      const Problem problem = problem_of(bytes);
      std::vector<int64_t> sizes = random.sizes(problem);
      if (i % 3 == 0) {
        sizes[static_cast<size_t>(random.between(0, static_cast<int64_t>(sizes.size()) - 1))] =
            random.of<int64_t>({INT64_MIN, -1, 0, int64_t{1} << 31, kMostExtent, INT64_MAX});
      }
      const Graph graph = graph_of(problem, sizes);
      for (const Tensor& tensor : graph.tensors) (void)tensor.strides();
      (void)graph.text();
      ++graphs;
    } catch (const UserError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 5000);
  EXPECT_GT(graphs, 2000);
}

TEST(CudnnProblemTest, WhatDoesNotFitIsRefused) {
  const auto refuses = [](const Problem& problem) {
    EXPECT_THROW(problem_of(bytes_of(problem)), UserError);
  };
  const auto changed = [&](auto made, const auto& change) {
    change(made);
    refuses(made);
  };
  Random random(4);
  Convolution convolution = random.convolution();
  convolution.window.kernel = {3, 3};
  convolution.window.strides = convolution.window.dilations = {1, 1};
  convolution.window.pads_before = convolution.window.pads_after = {1, 1};
  convolution.filter = {8, 4, 3, 3};
  convolution.channels_last = false;
  convolution.rank = 4;
  EXPECT_NO_THROW(problem_of(bytes_of(convolution)));
  changed(convolution, [](Convolution& made) { made.dtype = DType::kI32; });
  changed(convolution, [](Convolution& made) { made.filter.pop_back(); });
  changed(convolution, [](Convolution& made) { made.filter[2] = 4; });
  changed(convolution, [](Convolution& made) { made.filter[0] = 0; });
  changed(convolution, [](Convolution& made) { made.window.strides = {1}; });
  changed(convolution, [](Convolution& made) { made.window.pads_after = {1, -1}; });
  changed(convolution, [](Convolution& made) { made.window.auto_pad = "SAME"; });
  changed(convolution, [](Convolution& made) { made.rank = 5; });
  changed(convolution, [](Convolution& made) { made.rank = 3, made.channels_last = true; });
  changed(random.pooling(), [](Pooling& made) { made.mode = static_cast<ResampleMode>(99); });
  changed(random.sdpa(), [](Sdpa& made) { made.kv_heads = made.heads + 1; });
  changed(random.sdpa(), [](Sdpa& made) { made.depth = 0; });
  changed(random.sdpa(), [](Sdpa& made) { made.scale = std::numeric_limits<float>::infinity(); });
  changed(random.sdpa(), [](Sdpa& made) { made.band.left = -2; });
  changed(random.dot(), [](WeightDot& made) { made.dot.block = 0; });
  changed(random.dot(), [](WeightDot& made) { made.dot.scale_type = DType::kF32; });
  changed(random.dot(), [](WeightDot& made) { made.k = 0; });
}

TEST(CudnnProblemTest, SizesThatNoTensorHasAreErrors) {
  Random random(5);
  const WeightDot dot = random.dot();
  for (const int64_t rows : {int64_t{0}, int64_t{-1}, kMostExtent + 1, INT64_MAX}) {
    EXPECT_THROW(graph_of(dot, std::span(&rows, 1)), UserError) << rows;
  }
  Pooling pooling = random.pooling();
  pooling.window = {{2, 2}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
  pooling.rank = 4;
  const std::vector<int64_t> large(8, kMostExtent);  // each may be, all together may not
  const Graph graph = graph_of(pooling, large);
  EXPECT_THROW((void)graph.tensors[0].strides(), UserError);
}

// Versions that came later than the context may be wrong for what it asks.
TEST(CudnnProblemTest, GatesOfVersionsAreAskedAnew) {
  Sdpa attention = Random(6).sdpa();
  attention.depth = attention.value_depth = 64;
  attention.band = {};
  attention.has_lengths = false;
  const std::vector<Dim> sizes = {Dim::symbol("b"), Dim::symbol("q"), 128};
  EXPECT_TRUE(takes(attention, sizes, 91900, 9));
  EXPECT_THAT(takes(attention, sizes, 91001, 9).reason, HasSubstr("wrong results"));
  EXPECT_THAT(takes(attention, sizes, 90900, 9).reason, HasSubstr("9.11.0"));
  const Convolution convolution = Random(7).convolution();
  EXPECT_TRUE(takes(convolution, sizes, 90800, 9));
  EXPECT_THAT(takes(convolution, sizes, 91800, 10).reason, HasSubstr("9.19.0"));
}

TEST(CudnnProblemTest, ACallKeepsItsRules) {
  const StubLibrary stub = stub_library();
  Rules rules;
  rules.tensor_cores = false;
  rules.wanted = EngineChoice{3, 17};
  const GraphCall call(&stub.functions, 0, Random(8).convolution(), rules);
  const std::string bytes = call.saved();
  EXPECT_EQ(GraphCall::from_saved(bytes, &stub.functions, 0)->saved(), bytes);
  const GraphCall plain(&stub.functions, 0, call.problem(), {});
  EXPECT_NE(plain.saved(), bytes);
  // Where it is only looked at nobody can run it.
  const auto looked_at = GraphCall::from_saved(bytes, nullptr, -1);
  EXPECT_EQ(looked_at->saved(), bytes);
  EXPECT_ANY_THROW(looked_at->prepare(std::vector<int64_t>(looked_at->form().numbers, 8)));
}

// A fused convolution was chosen because a fast engine was named; where the one that is there names
// a slow one only, the Run is slow and right.
TEST(CudnnProblemTest, WhatWasChosenRunsWithTheEnginesThatThereAre) {
  const StubLibrary stub = stub_library();
  Convolution problem;
  problem.dtype = DType::kF32;
  problem.filter = {1, 1, 1, 1};
  problem.window = {{1, 1}, {1, 1}, {1, 1}, {0, 0}, {0, 0}};
  problem.has_relu = true;
  Rules rules;
  rules.only_fast = true;
  const GraphCall call(&stub.functions, 0, problem, rules);
  stub.fail("cudnnBackendGetAttribute");  // the first question, for fast ones
  alignas(16) float x[4] = {1, -2, 3, -4}, w[4] = {3}, y[4] = {};
  alignas(16) std::byte workspace[64];
  call.enqueue(nullptr, std::vector<void*>{x, w, y, workspace},
               std::vector<int64_t>{1, 1, 2, 2, 1, 1, 2, 2, 64});
  EXPECT_EQ(stub.pending(), 0);
  EXPECT_EQ(stub.last_engine(), kStubSlow);
  EXPECT_THAT(y, testing::ElementsAre(3, 0, 9, 0));
}

}  // namespace
}  // namespace tenon::cudnn
