// What cuDNN is asked to compute for an attention, and that the stub computes it so.
#include "kernels/cudnn/sdpa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "kernels/cudnn/graph_call.h"
#include "tests/kernels/cudnn/stub_library.h"

namespace tenon::cudnn {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Heads one below the other, rows of a head behind each other.
SdpaSizes packed(const Sdpa& sdpa, int64_t batch, int64_t queries, int64_t keys) {
  const auto strides = [](int64_t heads, int64_t rows, int64_t depth) {
    return SdpaSizes::Strides{heads * rows * depth, rows * depth, depth};
  };
  return {batch,
          queries,
          keys,
          strides(sdpa.heads, queries, sdpa.depth),
          strides(sdpa.kv_heads, keys, sdpa.depth),
          strides(sdpa.kv_heads, keys, sdpa.value_depth),
          strides(sdpa.heads, queries, sdpa.value_depth)};
}

Sdpa small() {
  Sdpa sdpa;
  sdpa.dtype = DType::kF32;  // the stub takes it
  sdpa.heads = 4;
  sdpa.kv_heads = 2;
  sdpa.depth = 4;
  sdpa.value_depth = 8;
  sdpa.scale = 0.5;
  sdpa.version = 91900;
  return sdpa;
}

TEST(CudnnSdpaGraphTest, ACausalOneAsEnginesKnowIt) {
  Sdpa sdpa = small();
  sdpa.dtype = DType::kF16;
  sdpa.band.right = 0;
  EXPECT_EQ(sdpa.graph(packed(sdpa, 2, 3, 5)).text(),
            "t0: f16[2, 4, 3, 4] strides [48, 12, 4, 1]\n"
            "t1: f16[2, 2, 4, 5] strides [40, 20, 1, 4]\n"
            "t2: f16[2, 2, 5, 8] strides [80, 40, 8, 1]\n"
            "t3: f16[2, 4, 3, 8] strides [96, 24, 8, 1]\n"
            "t4: f32[2, 4, 3, 5] virtual\n"
            "t5: f32[1, 1, 1, 1] = 0.5\n"
            "t6: f32[2, 4, 3, 5] virtual\n"
            "t7: i32[2, 4, 3, 5] virtual\n"
            "t8: i32[2, 4, 3, 5] virtual\n"
            "t9: bool[2, 4, 3, 5] virtual\n"
            "t10: f32[1, 1, 1, 1] = -inf\n"
            "t11: f32[2, 4, 3, 5] virtual\n"
            "t12: f32[2, 4, 3, 1] virtual\n"
            "t13: f32[2, 4, 3, 5] virtual\n"
            "t14: f32[2, 4, 3, 5] virtual\n"
            "t15: f32[2, 4, 3, 1] virtual\n"
            "t16: f32[2, 4, 3, 1] virtual\n"
            "t17: f32[2, 4, 3, 1] virtual\n"
            "t18: f16[2, 4, 3, 5] virtual\n"
            "t4 = matmul(t0, t1)\n"
            "t6 = multiply(t4, t5)\n"
            "t7 = index(t6) axis 2\n"
            "t8 = index(t6) axis 3\n"
            "t9 = greater_equal(t7, t8)\n"
            "t11 = select(t6, t10, t9)\n"
            "t12 = largest(t11)\n"
            "t13 = subtract(t11, t12)\n"
            "t14 = exp(t13)\n"
            "t15 = sum(t14)\n"
            "t16 = log(t15)\n"
            "t17 = add(t12, t16)\n"
            "t18 = divide(t14, t15)\n"
            "t3 = matmul(t18, t2)\n");
}

TEST(CudnnSdpaGraphTest, LengthsReachTheProductsAndTheBand) {
  Sdpa sdpa = small();
  sdpa.has_lengths = true;
  const std::string plain = sdpa.graph(packed(sdpa, 2, 3, 5)).text();
  EXPECT_THAT(plain, HasSubstr("t3: i32[2, 1, 1, 1]\nt4: i32[2, 1, 1, 1]\nt5: f32"));
  EXPECT_THAT(plain, HasSubstr("= matmul(t0, t1) rows t3 columns t4\n"));
  EXPECT_THAT(plain, HasSubstr(", t2) rows t3 depth t4\n"));
  EXPECT_THAT(plain, Not(HasSubstr("greater")));
  sdpa.band = {.left = 1, .right = 0, .from_end = true};
  EXPECT_THAT(sdpa.graph(packed(sdpa, 2, 3, 5)).text(), HasSubstr("t5: i32[2, 1, 1, 1]\n"));
}

TEST(CudnnSdpaGraphTest, OldVersionsHideByTheLowestNumber) {
  Sdpa sdpa = small();
  sdpa.band.right = 0;
  sdpa.version = 90900;
  EXPECT_THAT(sdpa.graph(packed(sdpa, 1, 2, 2)).text(), HasSubstr("= -3.40282"));
  sdpa.version = 91000;
  EXPECT_THAT(sdpa.graph(packed(sdpa, 1, 2, 2)).text(), HasSubstr("= -inf"));
}

// The definition, one element after the other.
class Computed {
 public:
  Computed(const Sdpa& sdpa, int64_t queries, int64_t keys)
      : sdpa(sdpa), batch(2), queries(queries), keys(keys) {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& values, int64_t count) {
      values.resize(static_cast<size_t>(batch * count));
      for (float& value : values) value = normal(random);
    };
    fill(q, sdpa.heads * queries * sdpa.depth);
    fill(k, sdpa.kv_heads * keys * sdpa.depth);
    fill(v, sdpa.kv_heads * keys * sdpa.value_depth);
    fill(y, sdpa.heads * queries * sdpa.value_depth);
    query_lengths.assign(2, static_cast<int32_t>(queries));
  }

  bool sees(int64_t row, int64_t query, int64_t key) const {
    const bool has = sdpa.has_lengths;
    int64_t position = query;
    if (sdpa.band.from_end) {
      position += has ? key_lengths.at(row) - distances.at(row) : keys - queries;
    }
    if (key >= (has ? key_lengths.at(row) : keys)) return false;
    return (sdpa.band.right < 0 || key <= position + sdpa.band.right) &&
           (sdpa.band.left < 0 || key >= position - sdpa.band.left);
  }

  double expected(int64_t row, int64_t head, int64_t query, int64_t column) const {
    const int64_t kv = row * sdpa.kv_heads + head / (sdpa.heads / sdpa.kv_heads);
    double sum = 0, weighed = 0;
    for (int64_t key = 0; key < keys; ++key) {
      if (!sees(row, query, key)) continue;
      double score = 0;
      for (int64_t i = 0; i < sdpa.depth; ++i) {
        score += static_cast<double>(
                     q.at(((row * sdpa.heads + head) * queries + query) * sdpa.depth + i)) *
                 k.at((kv * keys + key) * sdpa.depth + i);
      }
      const double weight = std::exp(score * sdpa.scale);
      sum += weight;
      weighed += weight * v.at((kv * keys + key) * sdpa.value_depth + column);
    }
    return weighed / sum;
  }

  void enqueue(const GraphCall& call) {
    alignas(16) std::byte workspace[64];
    std::vector<void*> buffers = {q.data(), k.data(), v.data()};
    if (sdpa.has_lengths) buffers.insert(buffers.end(), {query_lengths.data(), key_lengths.data()});
    if (sdpa.has_distances()) buffers.push_back(distances.data());
    buffers.insert(buffers.end(), {y.data(), workspace});
    std::vector<int64_t> numbers = {batch, queries, keys};
    const SdpaSizes sizes = packed(sdpa, batch, queries, keys);
    for (const SdpaSizes::Strides& of : {sizes.q, sizes.k, sizes.v, sizes.y}) {
      numbers.insert(numbers.end(), {of.batch, of.head, of.row});
    }
    numbers.push_back(64);
    call.enqueue(nullptr, buffers, numbers);
  }

  void expect_right() const {
    for (size_t i = 0; i < y.size(); ++i) {
      const auto index = static_cast<int64_t>(i);
      const int64_t column = index % sdpa.value_depth, row = index / sdpa.value_depth;
      ASSERT_NEAR(
          y[i],
          expected(row / queries / sdpa.heads, row / queries % sdpa.heads, row % queries, column),
          1e-5)
          << i;
    }
  }

  const Sdpa sdpa;
  int64_t batch, queries, keys;
  std::vector<float> q, k, v, y;
  std::vector<int32_t> query_lengths, key_lengths = {5, 2}, distances = {3, 2};
};

GraphCall call_of(const StubLibrary& stub, const Sdpa& sdpa) {
  return GraphCall(&stub.functions, 0, sdpa, {});
}

TEST(CudnnSdpaGraphTest, EveryBandComputesWhatItSays) {
  const StubLibrary stub = stub_library();
  for (const bool has_lengths : {false, true}) {
    for (const Band& band : {Band{}, Band{.right = 0}, Band{.right = 0, .from_end = true},
                             Band{.left = 2, .right = 0, .from_end = true}, Band{.right = 2}}) {
      Sdpa sdpa = small();
      sdpa.band = band;
      sdpa.has_lengths = has_lengths;
      SCOPED_TRACE(sdpa.graph(packed(sdpa, 2, 3, 5)).text());
      Computed computed(sdpa, 3, 5);
      computed.enqueue(call_of(stub, sdpa));
      computed.expect_right();
    }
  }
  EXPECT_EQ(stub.live(), 0);
}

// Each call of cuDNN's in turn: a Run fails, the next one is right.
TEST(CudnnSdpaGraphTest, ACallThatFailsIsAnErrorAndTheNextRunGoesOn) {
  const StubLibrary stub = stub_library();
  Sdpa sdpa = small();
  sdpa.band.right = 0;
  for (const char* function : {"cudnnBackendCreateDescriptor", "cudnnBackendSetAttribute",
                               "cudnnBackendFinalize", "cudnnSetStream", "cudnnBackendExecute"}) {
    SCOPED_TRACE(function);
    const GraphCall call = call_of(stub, sdpa);
    Computed computed(sdpa, 3, 5);
    stub.fail(function);
    EXPECT_THROW(computed.enqueue(call), UserError);
    EXPECT_EQ(stub.pending(), 0);
    computed.enqueue(call);
    computed.expect_right();
  }
  EXPECT_EQ(stub.live(), 0);
}

TEST(CudnnSdpaGraphTest, AQuestionMakesNoPlan) {
  const StubLibrary stub = stub_library();
  const codegen::GpuTarget target;
  const Sdpa sdpa = small();
  const PlanAnswer answer = make_plan(stub.functions, {.described = &target},
                                      sdpa.graph(packed(sdpa, 1, 3, 5)), {.builds = false});
  EXPECT_TRUE(answer.support);
  EXPECT_FALSE(answer.plan->plan);
  EXPECT_EQ(answer.plan->chosen.engine, kStubTensorCore);
}

}  // namespace
}  // namespace tenon::cudnn
