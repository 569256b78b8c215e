// Caches that the caller binds as past and as present: appended to in place, copied, or refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

using ::testing::HasSubstr;

// Rows of 8 keys in a cache of 12; 2 new tokens behind 3 and 6 of the past.
constexpr std::string_view kDecoder = R"(
graph decoder {
  input %q: f32[2,2,4,8]
  input %k: f32[2,2,2,8]
  input %v: f32[2,2,2,8]
  input %pk: f32[2,2,r,8]
  input %pv: f32[2,2,r,8]
  input %lengths: i32[2]
  input %cos: f32[32,3]
  input %sin: f32[32,3]
  %y: f32[2,2,4,8], %nk: f32[2,2,r,8], %nv: f32[2,2,r,8] = tenon::Attention(%q, %k, %v, _, %pk, %pv, %lengths, _, %cos, %sin) {causal_top_left=1, k_layout="bshd", kv_heads=2, q_heads=4, q_layout="bshd", v_layout="bshd", y_layout="bshd"}
  output %y
  output %nk
  output %nv
}
)";

constexpr std::string_view kGrowing = R"(
graph growing {
  input %q: f32[1,2,1,8]
  input %k: f32[1,2,1,8]
  input %v: f32[1,2,1,8]
  input %pk: f32[1,2,p,8]
  input %pv: f32[1,2,p,8]
  %y: f32[1,2,1,8], %nk: f32[1,2,p+1,8], %nv: f32[1,2,p+1,8] = tenon::Attention(%q, %k, %v, _, %pk, %pv) {kv_heads=2, q_heads=2}
  output %y
  output %nk
  output %nv
}
)";

constexpr size_t kPastK = 3, kPastV = 4;  // inputs
constexpr size_t kPresentK = 1, kPresentV = 2;
constexpr int64_t kRows = 12, kWidth = 8;

// An output may be memory of an input, from some byte of it on.
struct Shared {
  size_t output, input;
  size_t offset = 0;
};

class SharingContext final : public RunContext {
 public:
  SharingContext(std::vector<HostTensor> inputs, std::vector<Shared> shared)
      : inputs_(std::move(inputs)), shared_(std::move(shared)), rooms_(4) {
    for (const HostTensor& input : inputs_) places_.push_back(TestMemory::holding(input.bytes));
  }

  Input input(size_t index) override { return {places_[index]->data(), inputs_[index].dims}; }
  void* output(size_t index, std::span<const int64_t> dims) override {
    for (const Shared& shared : shared_) {
      if (shared.output != index) continue;
      return static_cast<std::byte*>(places_[shared.input]->data()) + shared.offset;
    }
    size_t elements = 1;
    for (const int64_t dim : dims) elements *= static_cast<size_t>(dim);
    rooms_[index] = TestMemory::poisoned(elements * sizeof(float));
    return rooms_[index]->data();
  }
  void parallel_for(int64_t total, int64_t,
                    const std::function<void(int64_t, int64_t)>& fn) override {
    fn(0, total);
  }

  std::vector<float> result(size_t index) {
    TestMemory* memory = rooms_[index].get();
    for (const Shared& shared : shared_) {
      if (shared.output == index) memory = places_[shared.input].get();
    }
    const std::vector<std::byte> bytes = memory->read();
    std::vector<float> numbers((bytes.size() - TestMemory::kGuard) / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));
    return numbers;
  }

 private:
  std::vector<HostTensor> inputs_;
  std::vector<Shared> shared_;
  std::vector<std::unique_ptr<TestMemory>> places_, rooms_;
};

std::vector<HostTensor> decoder_inputs() {
  const auto drawn = [](std::vector<int64_t> dims, int salt) {
    return HostTensor::from(DType::kF32, std::move(dims), [salt](int64_t i) {
      return std::sin(static_cast<double>(i * 7 + salt));
    });
  };
  return {drawn({2, 2, 4, 8}, 1),     drawn({2, 2, 2, 8}, 2),
          drawn({2, 2, 2, 8}, 3),     drawn({2, 2, kRows, 8}, 4),
          drawn({2, 2, kRows, 8}, 5), HostTensor::of(DType::kI32, {2}, {5, 8}),
          drawn({32, 3}, 6),          drawn({32, 3}, 7)};
}

struct Results {
  std::vector<float> y, keys, values;
};

Results run_sharing(const TestGraph& graph, const std::vector<HostTensor>& inputs,
                    std::vector<Shared> shared) {
  SharingContext context(inputs, std::move(shared));
  graph.executable->run(context);
  return {context.result(0), context.result(kPresentK), context.result(kPresentV)};
}

// Rows that hold a key are those of `apart`; behind them lies what did before.
void expect_appended(const std::vector<float>& got, const std::vector<float>& apart,
                     const HostTensor& past) {
  const std::vector<double> before = past.numbers();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto row = static_cast<int64_t>(i) / kWidth % kRows;
    const auto batch = static_cast<int64_t>(i) / (2 * kRows * kWidth);
    const float expected = row < (batch == 0 ? 5 : 8) ? apart[i] : static_cast<float>(before[i]);
    ASSERT_EQ(got[i], expected) << "element " << i;
  }
}

TEST(SharedCache, IsAppendedToInPlace) {
  const TestGraph graph(kDecoder);
  const std::vector<HostTensor> inputs = decoder_inputs();
  const Results apart = run_sharing(graph, inputs, {});
  const Results shared = run_sharing(graph, inputs, {{kPresentK, kPastK}, {kPresentV, kPastV}});
  EXPECT_EQ(shared.y, apart.y);
  expect_appended(shared.keys, apart.keys, inputs[kPastK]);
  expect_appended(shared.values, apart.values, inputs[kPastV]);
}

TEST(SharedCache, MayBeOneOfTheTwo) {
  const TestGraph graph(kDecoder);
  const std::vector<HostTensor> inputs = decoder_inputs();
  const Results apart = run_sharing(graph, inputs, {});
  const Results keys = run_sharing(graph, inputs, {{kPresentK, kPastK}});
  EXPECT_EQ(keys.y, apart.y);
  expect_appended(keys.keys, apart.keys, inputs[kPastK]);
  EXPECT_EQ(keys.values, apart.values);
  const Results values = run_sharing(graph, inputs, {{kPresentV, kPastV}});
  EXPECT_EQ(values.y, apart.y);
  EXPECT_EQ(values.keys, apart.keys);
  expect_appended(values.values, apart.values, inputs[kPastV]);
}

// Another node asks for the past when the attention has written its new rows.
TEST(SharedCache, ThatOthersReadLaterIsCopied) {
  std::string text(kDecoder);
  text.replace(text.find("  output %y"), 0, R"(  %s: f32[2,2,r,8] = tenon::Loop(%pk) body {
    input %a: f32[2,2,r,8]
    %c: f32[2,2,r,8] = Add(%a, %a)
    output %c
  }
)");
  text.replace(text.rfind("}"), 0, "  output %s\n");
  const TestGraph graph(text);
  const std::vector<HostTensor> inputs = decoder_inputs();
  const auto run = [&](std::vector<Shared> shared) {
    SharingContext context(inputs, std::move(shared));
    graph.executable->run(context);
    return std::array{context.result(0), context.result(kPresentK), context.result(kPresentV),
                      context.result(3)};
  };
  const auto apart = run({}), shared = run({{kPresentK, kPastK}, {kPresentV, kPastV}});
  EXPECT_EQ(shared[0], apart[0]);
  EXPECT_EQ(shared[kPresentK], apart[kPresentK]);
  expect_appended(shared[kPresentV], apart[kPresentV], inputs[kPastV]);
  EXPECT_EQ(shared[3], apart[3]);
}

// What is a key before the new rows are written may be none afterwards.
TEST(SharedCache, ThatIsBothKeysAndValuesIsCopied) {
  std::string text(kDecoder);
  text.replace(text.find("%pk, %pv, %lengths"), 8, "%pk, %pk");
  const TestGraph graph(text);
  const std::vector<HostTensor> inputs = decoder_inputs();
  const Results apart = run_sharing(graph, inputs, {});
  const Results shared = run_sharing(graph, inputs, {{kPresentK, kPastK}});
  EXPECT_EQ(shared.y, apart.y);
  EXPECT_EQ(shared.keys, apart.keys);
  EXPECT_EQ(shared.values, apart.values);
}

std::string refusal(const TestGraph& graph, const std::vector<HostTensor>& inputs,
                    std::vector<Shared> shared) {
  SharingContext context(inputs, std::move(shared));
  try {
    graph.executable->run(context);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(SharedCache, ThatOverlapsInPartIsRefused) {
  const TestGraph graph(kDecoder);
  EXPECT_THAT(refusal(graph, decoder_inputs(), {{kPresentK, kPastK, kWidth * sizeof(float)}}),
              HasSubstr("share part of their memory"));
  EXPECT_THAT(refusal(graph, decoder_inputs(), {{kPresentV, kPastV, 4}}),
              HasSubstr("share part of their memory"));
}

// Rows of heads would move while they are read.
TEST(SharedCache, ThatGrowsIsRefused) {
  const TestGraph graph(kGrowing);
  const auto ones = [](std::vector<int64_t> dims) {
    return HostTensor::of(DType::kF32, std::move(dims), {1.0});
  };
  const std::vector<HostTensor> inputs = {ones({1, 2, 1, 8}), ones({1, 2, 1, 8}),
                                          ones({1, 2, 1, 8}), ones({1, 2, 5, 8}),
                                          ones({1, 2, 5, 8})};
  EXPECT_EQ(refusal(graph, inputs, {}), "");
  EXPECT_THAT(refusal(graph, inputs, {{kPresentK, kPastK}}),
              HasSubstr("share part of their memory"));
}

// A position that the tables do not have would be read from behind them.
TEST(SharedCache, LengthsBeyondTheAnglesAreRefused) {
  const TestGraph graph(kDecoder);
  std::vector<HostTensor> inputs = decoder_inputs();
  inputs[5] = HostTensor::of(DType::kI32, {2}, {5, 33});
  EXPECT_NE(refusal(graph, inputs, {}), "");
}

}  // namespace
}  // namespace tenon::kernels
