// The interpreter against compiled code on every operation, and pipelines, which only it can run on
// a host.
#include "codegen/interpret.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/convert.h"
#include "base/error.h"
#include "codegen/tile/text.h"
#include "tests/codegen/gpu_samples.h"
#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

// ---- against compiled code

bool is_approximate(Fn fn) {
  return (fn >= Fn::kRsqrt && fn <= Fn::kReciprocal) || (fn >= Fn::kExp && fn <= Fn::kAtanh) ||
         fn == Fn::kPow || fn == Fn::kAtan2;
}

// Whether two right answers may differ: polynomials, and the order of a sum.
bool is_approximate(const Region& region) {
  for (const Operation& op : region.operations) {
    if (is_approximate(op.fn) || (op.op == Op::kReduce && op.fn == Fn::kAdd)) return true;
    for (const Region& inner : op.regions) {
      if (is_approximate(inner)) return true;
    }
  }
  return false;
}

double step_of(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF64:
      return 0x1p-53;
    default:
      return 0;
  }
}

void expect_close(const Sample& sample, const std::vector<std::vector<uint64_t>>& expected,
                  const std::vector<std::vector<uint64_t>>& got) {
  const bool approximate = is_approximate(sample.kernel.body);
  for (size_t i = 0; i < expected.size(); ++i) {
    const SampleBuffer& buffer = sample.buffers[i];
    double largest = 0;
    for (int64_t e = 0; e < buffer.elements; ++e) {
      const double value = load_element(buffer.dtype, expected[i].data(), e);
      if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    }
    const double relative = std::max(sample.tolerance, 8 * step_of(buffer.dtype));
    const double allowed = approximate ? relative * largest : 0;
    for (int64_t e = 0; e < buffer.elements; ++e) {
      const double x = load_element(buffer.dtype, expected[i].data(), e);
      const double y = load_element(buffer.dtype, got[i].data(), e);
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      ASSERT_LE(std::fabs(x - y), allowed) << sample.name << ", buffer " << i << ", element " << e
                                           << ": compiled " << x << ", interpreted " << y;
    }
  }
}

std::vector<void*> pointers_to(std::vector<std::vector<uint64_t>>& contents) {
  std::vector<void*> out;
  for (auto& content : contents) out.push_back(content.data());
  return out;
}

void compare_with_compiled(const std::vector<Sample>& samples) {
  std::map<std::string, HostKernel> compiled;  // samples differ in threads, which a host has not
  for (const Sample& sample : samples) {
    const std::string text = print(sample.kernel);
    auto place = compiled.find(text);
    if (place == compiled.end()) place = compiled.emplace(text, HostKernel(sample.kernel)).first;
    auto expected = sample_contents(sample), got = expected;
    place->second(pointers_to(expected), sample.indices, sample.tasks);
    ASSERT_NO_THROW(interpret(sample.kernel, pointers_to(got), sample.indices, 0, sample.tasks))
        << sample.name;
    expect_close(sample, expected, got);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// Larger tiles take the host's compiler seconds, and are larger in nothing else.
bool is_small(const Sample& sample) {
  constexpr int64_t kMostElements = 128, kMostInProducts = 1024;
  const bool product = sample.name.starts_with("matmul") || sample.name.starts_with("attention");
  return std::ranges::all_of(sample.kernel.types, [&](const Type& type) {
    return type.kind != Type::Kind::kTile ||
           type.elements() <= (product ? kMostInProducts : kMostElements);
  });
}

TEST(InterpretTest, SmallFloatsAsCompiled) {
  std::vector<Sample> samples = representative_samples();
  std::erase_if(samples,
                [](const Sample& sample) { return !sample.name.starts_with("dequantize"); });
  ASSERT_EQ(samples.size(), 6u);
  compare_with_compiled(samples);
}

TEST(InterpretTest, EveryOperationAsCompiled) {
  std::vector<Sample> samples = operation_samples();
  std::erase_if(samples,
                [](const Sample& sample) { return sample.threads > 64 || !is_small(sample); });
  ASSERT_GT(samples.size(), 400u);
  compare_with_compiled(samples);
}

// ---- pipelines

// out[task][64] = sum over steps of x[step] + the TMA box at row step of a matrix [rows, columns].
Kernel pipeline_kernel(int stages, const std::function<ValueId(Builder&, ValueId)>& stage_to_read) {
  Builder b("piped");
  ValueId x = b.buffer("x", DType::kF32, /*constant=*/true), m = b.buffer("m", DType::kF32);
  ValueId y = b.buffer("y", DType::kF32);
  ValueId steps = b.index_parameter("steps"), rows = b.index_parameter("rows");
  ValueId vectors = b.ring(DType::kF32, {64}, stages), boxes = b.ring(DType::kF32, {2, 32}, stages);
  ValueId zero = b.index(0);
  // Two pipelines on the same rings: positions go on.
  ValueId sum = b.constant(DType::kF32, 0, {64});
  for (int pass = 0; pass < 2; ++pass) {
    sum = b.pipeline(
        stages, zero, steps, {sum},
        [&](ValueId i, ValueId stage) {
          b.bulk_load(vectors, stage, x, b.mul(i, b.index(64)));
          b.tma_load(boxes, stage, {m, rows, b.index(30), b.index(40)}, b.sub(i, b.index(1)),
                     b.index(4));
        },
        [&](ValueId, ValueId stage, std::span<const ValueId> carried) {
          ValueId from = stage_to_read(b, stage);
          ValueId vector = b.read(vectors, from, {64});
          ValueId low = b.read(boxes, from, {32}), high = b.read(boxes, from, {32}, b.index(32));
          ValueId both = b.concat(std::vector{low, high}, 0);
          return std::vector{b.add(carried[0], b.add(vector, both))};
        })[0];
  }
  b.store({y, b.mul(b.task(), b.index(64))}, sum);
  return b.finish();
}

struct PipelineData {
  explicit PipelineData(int64_t steps) : x(static_cast<size_t>(steps * 64 + 1)), m(40 * 5), y(64) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 37);
    for (size_t i = 0; i < m.size(); ++i) m[i] = static_cast<float>(i % 11);
  }
  std::vector<float> expected(int64_t steps) const {
    std::vector<float> out(64);
    for (int64_t step = 0; step < steps; ++step) {
      for (int64_t e = 0; e < 64; ++e) {
        const int64_t row = step - 1 + e / 32, column = 4 + e % 32;
        const bool inside = row >= 0 && row < 5 && column < 30;
        out[e] += 2 * (x[step * 64 + e] + (inside ? m[row * 40 + column] : 0));
      }
    }
    return out;
  }
  std::vector<float> x, m, y;
};

ValueId own_stage(Builder&, ValueId stage) { return stage; }

TEST(InterpretTest, PipelinesWithMoreAndFewerStepsThanStages) {
  for (int stages : {1, 2, 3, 5}) {
    const Kernel kernel = pipeline_kernel(stages, own_stage);
    EXPECT_TRUE(needs_interpreter(kernel));
    for (int64_t steps : {0, 1, 2, 3, 4, 7, 16}) {
      PipelineData data(steps);
      interpret(kernel, std::vector<void*>{data.x.data(), data.m.data(), data.y.data()},
                std::vector<int64_t>{steps, 5}, 0, 1);
      EXPECT_EQ(data.y, data.expected(steps)) << stages << " stages, " << steps << " steps";
    }
  }
}

// Groups with rows of their own, of which those past an extent are zeros even where no number is.
TEST(InterpretTest, GroupsMultiplyRowsOfTheirOwn) {
  Builder b("stacked");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  ValueId extent = b.index_parameter("extent"), zero = b.index(0);
  ValueId ring = b.ring(DType::kF32, {4, 3}, 2);
  b.pipeline(
      2, zero, b.index(1), {}, [&](ValueId, ValueId stage) { b.bulk_load(ring, stage, x, zero); },
      [&](ValueId, ValueId stage, std::span<const ValueId>) {
        ValueId right = b.read(ring, stage, {4, 3}, kNone, {}, extent);
        ValueId left = b.constant(DType::kF32, 2, {2, 2}),
                sums = b.constant(DType::kF32, 1, {2, 3});
        b.store({y, zero}, b.grouped_dot(sums, left, right, 2));
        return std::vector<ValueId>{};
      });
  const Kernel kernel = b.finish();
  std::vector<float> data{1, 2, 3, 4, 5, 6, 7, 8, 9, NAN, NAN, NAN}, result(6);
  interpret(kernel, std::vector<void*>{data.data(), result.data()}, std::vector<int64_t>{3}, 0, 1);
  EXPECT_EQ(result, (std::vector<float>{11, 15, 19, 15, 17, 19}));
}

// Of one column for each group, the products of a block of k are a column of their own.
TEST(InterpretTest, BlocksOfKHaveColumnsOfTheirOwn) {
  Builder b("blockwise");
  ValueId y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId left = b.constant(DType::kF32, 2, {2, 4});
  ValueId right = b.cast(b.iota(DType::kI32, {4, 2}, 0), DType::kF32);  // k in both groups
  b.store({y, zero},
          b.blockwise_dot(b.constant(DType::kF32, 1, {2, 4}), left, right, 2, {2, 1, 4}));
  const Kernel kernel = b.finish();
  std::vector<float> result(8);
  interpret(kernel, std::vector<void*>{result.data()}, {}, 0, 1);
  EXPECT_EQ(result, (std::vector<float>{1, 3, 11, 1, 1, 3, 11, 1}));
  const std::string text = print(kernel);
  EXPECT_NE(text.find(" groups 2 blocks 2 from 1 zeros 4"), std::string::npos) << text;
  EXPECT_EQ(print(parse(text)), text);
}

// Both operands have 10 bits of mantissa, ties to even; sums keep all of theirs.
TEST(InterpretTest, Tf32RoundsOperands) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<std::pair<float, float>> cases{
      {1 + 0x1p-11f, 1},
      {-1 - 0x1p-11f, -1},
      {1 + 0x1.002p-11f, 1 + 0x1p-10f},
      {1 + 0x1.8p-10f, 1 + 0x1p-9f},
      {0x1.fffp9f, 0x1p10f},
      {0x1.fffffep127f, inf},
      {inf, inf},
      {0x1p-137f, 0},
      {0x1.8p-136f, 0x1p-135f},
      {NAN, NAN},
  };
  const int count = static_cast<int>(cases.size());
  Builder b("rounded");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId numbers = b.load({x, zero}, {count, 1}), one = b.constant(DType::kF32, 1, {1, 1});
  b.store({y, zero}, b.dot_tf32(b.constant(DType::kF32, 0, {count, 1}), numbers, one));
  b.store({y, b.index(count)},
          b.dot_tf32(b.constant(DType::kF32, 1 + 0x1p-23, {1, count}), one, b.transpose(numbers)));
  std::vector<float> data, result(cases.size() * 2);
  for (const auto& [number, rounded] : cases) data.push_back(number);
  interpret(b.finish(), std::vector<void*>{data.data(), result.data()}, {}, 0, 1);
  for (size_t i = 0; i < cases.size(); ++i) {
    const auto [number, rounded] = cases[i];
    const float summed = 1 + 0x1p-23f + rounded;
    EXPECT_TRUE(std::isnan(rounded) ? std::isnan(result[i]) : result[i] == rounded) << number;
    const float sum = result[cases.size() + i];
    EXPECT_TRUE(std::isnan(rounded) ? std::isnan(sum) : sum == summed) << number;
  }
}

// What would be a race on a GPU.
TEST(InterpretTest, WrongStagesAreErrorsThatNameTheOperation) {
  for (int stages : {2, 3}) {
    const Kernel next = pipeline_kernel(stages, [&](Builder& b, ValueId stage) {
      return b.rem(b.add(stage, b.index(1)), b.index(stages));
    });
    for (int64_t steps : {1, 2, 8}) {
      PipelineData data(steps);
      try {
        interpret(next, std::vector<void*>{data.x.data(), data.m.data(), data.y.data()},
                  std::vector<int64_t>{steps, 5}, 0, 1);
        ADD_FAILURE() << stages << " stages, " << steps << " steps: read the wrong stage";
      } catch (const InternalError& error) {
        EXPECT_NE(std::string(error.what()).find("kernel @piped, task 0: read: stage 1 is read"),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(InterpretTest, AStageThatNobodyFetchedIsAnError) {
  Builder b("unfetched");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId ring = b.ring(DType::kF32, {4}, 2);
  b.pipeline(
      2, zero, b.index(3), {},
      [&](ValueId i, ValueId stage) {  // not in step 2
        b.branch(b.less(i, b.index(2)), [&] {
          b.bulk_load(ring, stage, x, b.mul(i, b.index(4)));
          return std::vector<ValueId>{};
        });
      },
      [&](ValueId i, ValueId stage, std::span<const ValueId>) {
        b.store({y, b.mul(i, b.index(4))}, b.read(ring, stage, {4}));
        return std::vector<ValueId>{};
      });
  const Kernel kernel = b.finish();
  std::vector<float> in(12, 1), out(12);
  try {
    interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1);
    FAIL() << "an empty stage was read";
  } catch (const InternalError& error) {
    EXPECT_STREQ(error.what(),
                 "kernel @unfetched, task 0: read: stage 0 is read in step 2, and was not fetched");
  }
  EXPECT_EQ(out[7], 1);
}

TEST(InterpretTest, ReadingPastAStageIsAnError) {
  Builder b("past");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId ring = b.ring(DType::kF32, {8}, 1);
  b.pipeline(
      1, zero, b.index(1), {}, [&](ValueId, ValueId stage) { b.bulk_load(ring, stage, x, zero); },
      [&](ValueId, ValueId stage, std::span<const ValueId>) {
        b.store({y, zero}, b.read(ring, stage, {4}, b.index(5)));
        return std::vector<ValueId>{};
      });
  const Kernel kernel = b.finish();
  std::vector<float> in(16), out(16);
  EXPECT_THROW(interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1),
               InternalError);
}

TEST(InterpretTest, WhatIsFetchedCannotBeWritten) {
  Builder b("race");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
  ValueId ring = b.ring(DType::kF32, {4}, 1);
  b.pipeline(
      1, zero, b.index(1), {}, [&](ValueId, ValueId stage) { b.bulk_load(ring, stage, x, zero); },
      [&](ValueId, ValueId stage, std::span<const ValueId>) {
        b.store({y, zero}, b.read(ring, stage, {4}));
        return std::vector<ValueId>{};
      });
  const Kernel kernel = b.finish();
  std::vector<float> in(4, 1), out(4);
  interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1);
  EXPECT_EQ(out, in);
  EXPECT_THROW(interpret(kernel, std::vector<void*>{in.data(), in.data()}, {}, 0, 1),
               InternalError);
}

TEST(InterpretTest, ReadsWithStrides) {
  Builder b("strided");
  ValueId x = b.buffer("x", DType::kI32), y = b.buffer("y", DType::kI32), zero = b.index(0);
  ValueId ring = b.ring(DType::kI32, {16}, 1);
  b.pipeline(
      1, zero, b.index(1), {}, [&](ValueId, ValueId stage) { b.bulk_load(ring, stage, x, zero); },
      [&](ValueId, ValueId stage, std::span<const ValueId>) {
        b.store({y, zero}, b.read(ring, stage, {3, 4}, b.index(2), {5, 0}));
        b.store({y, b.index(12)}, b.read(ring, stage, {2, 2}, kNone, {1, 8}));
        return std::vector<ValueId>{};
      });
  const Kernel kernel = b.finish();
  std::vector<int32_t> in(16), out(16);
  for (int i = 0; i < 16; ++i) in[i] = i;
  interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1);
  EXPECT_EQ(out, (std::vector{2, 2, 2, 2, 7, 7, 7, 7, 12, 12, 12, 12, 0, 8, 1, 9}));
}

// ---- what else is new

TEST(InterpretTest, PermuteMovesBits) {
  Builder b("permute");
  ValueId x = b.buffer("x", DType::kI32), y = b.buffer("y", DType::kI32), zero = b.index(0);
  // Element bits of the result [c2 c1 c0 | r1 r0] from a source [4, 8]: a transposition.
  ValueId tile = b.load({x, zero}, {4, 8});
  b.store({y, zero}, b.permute(tile, {3, 4, 0, 1, 2}, {8, 4}));
  const Kernel kernel = b.finish();
  std::vector<int32_t> in(32), out(32);
  for (int i = 0; i < 32; ++i) in[i] = i;
  interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], i % 4 * 8 + i / 4);
}

TEST(InterpretTest, BitcastToNarrowerElementsHasLowBitsFirst) {
  Builder b("narrow");
  ValueId x = b.buffer("x", DType::kU32), y = b.buffer("y", DType::kU16), zero = b.index(0);
  b.store({y, zero}, b.bitcast(b.load({x, zero}, {2, 2}), DType::kU16));
  const Kernel kernel = b.finish();
  std::vector<uint32_t> in{0x00010000, 0x00030002, 0x00050004, 0x00070006};
  std::vector<uint16_t> out(8);
  interpret(kernel, std::vector<void*>{in.data(), out.data()}, {}, 0, 1);
  for (uint16_t i = 0; i < 8; ++i) EXPECT_EQ(out[i], i);
}

// The task that comes last adds up what the others stored.
TEST(InterpretTest, ArriveCountsTasks) {
  Builder b("arrive");
  ValueId counters = b.buffer("counters", DType::kI32), parts = b.buffer("parts", DType::kF32);
  ValueId y = b.buffer("y", DType::kF32), tasks = b.index_parameter("tasks");
  ValueId zero = b.index(0), four = b.index(4);
  ValueId number = b.from_index(b.add(b.task(), b.index(1)), DType::kF32);
  b.store({parts, b.mul(b.task(), four)}, b.splat(number, {4}));
  ValueId before = b.arrive(counters, b.index(1));
  b.branch(b.equal(before, b.sub(tasks, b.index(1))), [&] {
    ValueId sum = b.loop(zero, tasks, b.index(1), {b.constant(DType::kF32, 0, {4})},
                         [&](ValueId i, std::span<const ValueId> carried) {
                           ValueId part = b.load({parts, b.mul(i, four)}, {4});
                           return std::vector{b.add(carried[0], part)};
                         })[0];
    b.store({y, zero}, sum);
    return std::vector<ValueId>{};
  });
  const Kernel kernel = b.finish();
  std::vector<int32_t> counts(2);
  std::vector<float> partial(20), out(4);
  interpret(kernel, std::vector<void*>{counts.data(), partial.data(), out.data()},
            std::vector<int64_t>{5}, 0, 5);
  EXPECT_EQ(counts, (std::vector{0, 5}));
  EXPECT_EQ(out, std::vector<float>(4, 15));
}

TEST(InterpretTest, ScratchBeginsPoisonedInEveryTask) {
  Builder b("scratch");
  ValueId y = b.buffer("y", DType::kF32), room = b.alloc(DType::kF32, 4), zero = b.index(0);
  b.store({y, b.mul(b.task(), b.index(4))}, b.load({room, zero}, {4}));
  b.store({room, zero}, b.constant(DType::kF32, 1, {4}));
  const Kernel kernel = b.finish();
  std::vector<float> out(8);
  interpret(kernel, std::vector<void*>{out.data()}, {}, 0, 2);
  for (float value : out) EXPECT_TRUE(std::isnan(value));
}

TEST(InterpretTest, HalvesRoundAsConvertDoes) {
  Builder b("round");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF16);
  ValueId z = b.buffer("z", DType::kBF16), w = b.buffer("w", DType::kF32), zero = b.index(0);
  ValueId in = b.load({x, zero}, {4096}), half = b.cast(in, DType::kF16);
  b.store({y, zero}, half);
  b.store({z, zero}, b.cast(in, DType::kBF16));
  b.store({w, zero}, b.cast(half, DType::kF32));
  const Kernel kernel = b.finish();
  std::vector<float> numbers(4096), back(4096);
  for (uint32_t i = 0; i < 4096; ++i) {  // all exponents, ties among them
    const uint32_t bits = i << 20 | (i % 3 == 0 ? 0x1000 : i % 3 == 1 ? 0x8000 : i * 77);
    std::memcpy(&numbers[i], &bits, 4);
  }
  std::vector<uint16_t> f16(4096), bf16(4096);
  interpret(kernel, std::vector<void*>{numbers.data(), f16.data(), bf16.data(), back.data()}, {}, 0,
            1);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const uint64_t code = encode(DType::kF16, numbers[i], {.saturate = false});
    ASSERT_EQ(f16[i], code) << numbers[i];
    ASSERT_EQ(bf16[i], encode(DType::kBF16, numbers[i], {.saturate = false})) << numbers[i];
    const double exact = decode(DType::kF16, code);
    ASSERT_TRUE(std::isnan(exact) ? std::isnan(back[i]) : back[i] == exact) << numbers[i];
  }
}

}  // namespace
}  // namespace tenon::codegen
