// PTX of the representative kernels, put through the assembler for every architecture.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <regex>

#include "base/error.h"
#include "codegen/compile.h"
#include "codegen/tile/builder.h"
#include "codegen/tile/text.h"
#include "tests/codegen/estimate_check.h"
#include "tests/codegen/gpu_samples.h"

namespace tenon::codegen {
namespace {

GpuTarget target_of(const std::string& arch) {
  GpuTarget target;
  target.arch = arch;
  target.shared_bytes = 99 << 10;  // the least of all
  return target;
}

TEST(PtxTest, EveryKernelAssemblesForEveryArchitecture) {
  if (assembler().empty()) {
    GTEST_SKIP() << "no assembler: scripts/setup.sh fetches nvidia-cuda-nvcc into .deps";
  }
  for (const Sample& sample : representative_samples()) {
    for (const std::string& arch : gpu_archs()) {
      GpuCode code = compile_gpu(sample.kernel, sample.threads, target_of(arch));
      Assembled assembled = assemble(code, arch);
      ASSERT_EQ(assembled.status, 0) << sample.name << " " << arch << "\n" << assembled.report;
      EXPECT_TRUE(has(assembled.report, "[^0-9]0 bytes spill stores"))
          << sample.name << " " << arch << "\n"
          << assembled.report;
      expect_estimated(sample.name, sample.kernel, sample.threads, target_of(arch), code,
                       assembled);
    }
  }
}

// Vectors may be used where memory begins at a multiple of their size: asked in the kernel, unless
// that is known.
TEST(PtxTest, WhatIsAlignedIsReadInVectorsWithoutAsking) {
  constexpr const char* kCopy = R"(kernel @copy(%x: WORD buffer<f32>, %y: WORD buffer<f32>) {
  %0 = task : index
  %1 = index.mul %0, 1024 : index
  %2 = load %x[%1] strides(1) : f32[1024]
  store %y[%1], %2 strides(1) : f32[1024]
})";
  for (const bool aligned : {false, true}) {
    const std::string text =
        std::regex_replace(kCopy, std::regex("WORD "), aligned ? "aligned " : "");
    const std::string ptx = compile_gpu(parse(text), 128, target_of("sm_90a")).ptx;
    EXPECT_TRUE(has(ptx, "ld\\.global[^ ]*\\.v4")) << ptx;
    EXPECT_EQ(has(ptx, "ld\\.global\\.[fub]32"), !aligned) << ptx;
  }
}

TEST(PtxTest, PipelinesAssembleWithoutComplaint) {
  if (assembler().empty()) GTEST_SKIP() << "no assembler";
  for (const Sample& sample : pipeline_samples()) {
    for (const std::string& arch : gpu_archs()) {
      if (!sample.representative && arch != "sm_90a") continue;
      GpuTarget target = target_of(arch);
      target.shared_bytes = 227 << 10;
      GpuCode code = compile_gpu(sample.kernel, sample.threads, target);
      Assembled assembled = assemble(code, arch);
      ASSERT_EQ(assembled.status, 0) << sample.name << " " << arch << "\n" << assembled.report;
      EXPECT_FALSE(has(assembled.report, kComplaints)) << sample.name << "\n" << assembled.report;
      EXPECT_TRUE(assembled.keeps_to_registers()) << sample.name << " " << arch << "\n"
                                                  << assembled.report;
      expect_estimated(sample.name, sample.kernel, sample.threads, target, code, assembled);
    }
  }
}

TEST(PtxTest, EveryOperationCompiles) {
  for (const Sample& sample : operation_samples()) {
    GpuTarget target = target_of("sm_90a");
    GpuCode code;
    ASSERT_NO_THROW(code = compile_gpu(sample.kernel, sample.threads, target)) << sample.name;
    EXPECT_NE(code.ptx.find(".entry " + code.entry), std::string::npos) << sample.name;
  }
}

Sample sample_called(const std::string& name) {
  for (Sample& sample : representative_samples()) {
    if (sample.name == name) return sample;
  }
  throw InternalError("no sample is called " + name);
}

std::string ptx_of(const std::string& name, const std::string& arch = "sm_90a") {
  Sample sample = sample_called(name);
  return compile_gpu(sample.kernel, sample.threads, target_of(arch)).ptx;
}

TEST(PtxTest, NeighboursMoveAsVectors) {
  std::string f32 = ptx_of("pointwise_1024_f32_t128"), f16 = ptx_of("pointwise_1024_f16_t128");
  EXPECT_TRUE(has(f32, R"(ld\.global\.v4\.f32)"));
  EXPECT_TRUE(has(f32, R"(st\.global\.v4\.f32)"));
  EXPECT_TRUE(has(f16, R"(ld\.global\.v4\.(b|u)32)"));
  EXPECT_TRUE(has(f16, R"(st\.global\.v4\.(b|u)32)"));
}

TEST(PtxTest, HalvesMeetOnTensorCores) {
  EXPECT_TRUE(has(ptx_of("matmul_64_64_32_f16_t128"), R"(mma\.sync\.aligned\.m16n8k16.*f16)"));
  EXPECT_TRUE(has(ptx_of("matmul_64_64_32_bf16_t128"), R"(mma\.sync\.aligned\.m16n8k16.*bf16)"));
  EXPECT_TRUE(has(ptx_of("matmul_64_64_32_f16_t128"), R"(ldmatrix.*\.trans)"));
  EXPECT_FALSE(has(ptx_of("matmul_nt_128_64_32_f16_t256"), R"(ldmatrix.*\.trans)"));
  EXPECT_FALSE(has(ptx_of("matmul_32_32_16_f32_t128"), R"(mma\.sync)"));
}

// Contraction, flushed subnormal numbers and approximations would differ from the host. Two are
// meant: exponentials are built on the instruction for 2^x, and reciprocals may be 1 ULP off.
TEST(PtxTest, ArithmeticIsExact) {
  for (const Sample& sample : representative_samples()) {
    std::string ptx = compile_gpu(sample.kernel, sample.threads, target_of("sm_90a")).ptx;
    EXPECT_FALSE(has(ptx, R"(\.ftz|(^|\t)(?!ex2|rcp)[a-z0-9]+\.approx|\.full\.)")) << sample.name;
    EXPECT_FALSE(has(ptx, R"(\t(add|mul|sub)\.f(32|64))")) << sample.name;
  }
}

TEST(PtxTest, ReciprocalsAreFastAndDivisionsExact) {
  auto ptx = [](const std::function<ValueId(Builder&, ValueId)>& make) {
    Builder b("rates");
    ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
    b.store({x, zero}, make(b, b.load({x, zero}, {32})));
    return compile_gpu(b.finish(), 32, target_of("sm_90a")).ptx;
  };
  std::string fast = ptx([](Builder& b, ValueId x) { return b.unary(Fn::kReciprocal, x); });
  std::string exact = ptx([](Builder& b, ValueId x) {
    return b.binary(Fn::kDiv, b.constant(DType::kF32, 3, {32}), x);
  });
  EXPECT_TRUE(has(fast, R"(\trcp\.approx\.f32)"));
  EXPECT_FALSE(has(fast, R"(\.rn\.)"));
  EXPECT_TRUE(has(exact, R"(\tdiv\.rn\.f32)"));
  EXPECT_FALSE(has(exact, R"(\.approx)"));
}

TEST(PtxTest, AnExponentialIsOnePowerOfTwo) {
  std::string ptx = ptx_of("softmax_1000_1024_f16_t128");
  std::regex power(R"(\tex2\.approx\.f32)");
  EXPECT_EQ(std::distance(std::sregex_iterator(ptx.begin(), ptx.end(), power), {}), 1024 / 128);
}

// Each sine brings two tables of 2 KiB; constant memory is 64 KiB.
TEST(PtxTest, EqualTablesAreKeptOnce) {
  auto code = [](int sines) {
    Builder b("sines");
    ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
    ValueId value = b.load({x, zero}, {32});
    for (int i = 0; i < sines; ++i) value = b.unary(Fn::kSin, value);
    b.store({x, zero}, value);
    return compile_gpu(b.finish(), 32, target_of("sm_90a"));
  };
  GpuCode one = code(1), many = code(20);
  EXPECT_EQ(many.shared_bytes, one.shared_bytes);
  std::regex table(R"(\n\.const [^\n]*_table)");
  EXPECT_EQ(std::distance(std::sregex_iterator(many.ptx.begin(), many.ptx.end(), table), {}), 2);
  if (!assembler().empty()) {
    Assembled assembled = assemble(many, "sm_90a");
    EXPECT_EQ(assembled.status, 0) << assembled.report;
  }
}

TEST(PtxTest, EveryArchitectureIsNamedInTheText) {
  for (const std::string& arch : gpu_archs()) {
    std::string ptx = ptx_of("table_512_f32_t128", arch);
    EXPECT_TRUE(has(ptx, "\n\\.target " + arch + "\n")) << arch;
    EXPECT_TRUE(has(ptx, arch == "sm_110a" ? R"(\.version 9\.0)" : R"(\.version [78]\.[018])"));
  }
  EXPECT_THROW(ptx_of("table_512_f32_t128", "sm_10"), UserError);
}

TEST(PtxTest, CarriesItsTileProgram) {
  for (const Sample& sample : representative_samples()) {
    GpuCode code = compile_gpu(sample.kernel, sample.threads, target_of("sm_90a"));
    std::string program = tile_program(code.ptx);
    EXPECT_EQ(program, print(sample.kernel));
    EXPECT_EQ(print(parse(program)), program);
  }
  EXPECT_THROW(tile_program(".version 8.0\n"), UserError);
  EXPECT_THROW(tile_program("// tile program\n// kernel @x() {\n"), UserError);
}

// 32 weights of a thread: four words, of which each becomes four pairs by 13 instructions on bits
// (the assembler makes eleven of them) and four multiplications; nothing passes through f32 or
// another thread.
TEST(PtxTest, WeightsAreDequantizedInPairs) {
  for (const Sample& sample : pipeline_samples()) {
    if (sample.name != "packed_product_128x64_f16_t256") continue;
    std::string ptx = compile_gpu(sample.kernel, sample.threads, target_of("sm_90a")).ptx;
    auto count = [&](const std::string& pattern) {
      std::regex regex(pattern);
      return std::distance(std::sregex_iterator(ptx.begin(), ptx.end(), regex), {});
    };
    EXPECT_EQ(count(R"(wgmma\.mma_async)"), 4);
    EXPECT_EQ(count(R"(mul\.rn\.f16x2)"), 16);
    EXPECT_EQ(count(R"(cvt\.rn\.f16x2\.e4m3x2)"), 4);
    EXPECT_EQ(count(R"(ld\.shared\.v2)"), 1);  // scales of two rows
    EXPECT_EQ(count(R"(cvt\.f32\.f16|shfl)"), 0);
    std::smatch step;
    ASSERT_TRUE(
        std::regex_search(ptx, step, std::regex(R"(wgmma\.commit_group[^]*?wgmma\.wait_group)")));
    std::string between = step.str();
    std::regex bits(R"(\t(and|or|shl|shr)\.b32|\tshr\.u32)");
    EXPECT_LE(std::distance(std::sregex_iterator(between.begin(), between.end(), bits), {}), 13);
  }
}

Sample pipeline_called(const std::string& name) {
  for (Sample& sample : pipeline_samples()) {
    if (sample.name == name) return sample;
  }
  throw InternalError("no pipeline is called " + name);
}

// One more group in flight than the registers of a left operand allow: the assembler takes it, and
// the listing of its machine code tells.
TEST(PtxTest, AWaitThatLeavesTooManyProductsIsNoticed) {
  if (assembler().empty() || disassembler().empty()) GTEST_SKIP() << "no assembler";
  Sample sample = pipeline_called("packed_product_128x32_f16_t256");
  GpuCode code = compile_gpu(sample.kernel, sample.threads, target_of("sm_90a"));
  EXPECT_EQ(assemble(code, "sm_90a").status, 0);
  code.ptx = std::regex_replace(code.ptx, std::regex(R"(wgmma\.wait_group\.sync\.aligned 2;)"),
                                "wgmma.wait_group.sync.aligned 3;");
  Assembled raced = assemble(code, "sm_90a");
  EXPECT_NE(raced.status, 0);
  EXPECT_TRUE(has(raced.report, "writes what a product in flight reads")) << raced.report;
}

// Loads from a stage and the copy that fills it again go through different proxies: a fence stands
// between the last load and the arrival that lets the copy begin.
TEST(PtxTest, AStageThatWasLoadedIsGivenBackBehindAFence) {
  Sample sample = pipeline_called("packed_product_64x8_f16_t128");
  std::string ptx = compile_gpu(sample.kernel, sample.threads, target_of("sm_90a")).ptx;
  size_t arrivals = 0;
  for (size_t at = 0; (at = ptx.find("mbarrier.arrive.shared::cta.b64 _", at)) != std::string::npos;
       ++at, ++arrivals) {
    size_t fence = ptx.rfind("fence.proxy.async.shared::cta", at);
    ASSERT_NE(fence, std::string::npos);
    EXPECT_FALSE(has(ptx.substr(fence, at - fence), "ld.shared|ldmatrix"));
  }
  EXPECT_GT(arrivals, 0u);
}

// TMA rounds where the GPU has it, else who multiplies does.
TEST(PtxTest, Tf32IsRoundedOnce) {
  Sample large = pipeline_called("plain_product_128x128_f32_t256");
  Sample small = pipeline_called("plain_product_128x8_f32_t256");
  auto compile = [](const Sample& sample, const char* arch) {
    GpuTarget target = target_of(arch);
    target.shared_bytes = 160 << 10;
    return compile_gpu(sample.kernel, sample.threads, target);
  };
  GpuCode with_tma = compile(large, "sm_90a");
  EXPECT_TRUE(has(with_tma.ptx, R"(wgmma\.mma_async\.sync\.aligned\.m64n128k8\.f32\.tf32\.tf32)"));
  ASSERT_EQ(with_tma.tma_descriptors.size(), 2u);
  for (const TmaDescriptor& descriptor : with_tma.tma_descriptors) {
    EXPECT_TRUE(descriptor.tf32 && descriptor.swizzled);
  }
  GpuCode few = compile(small, "sm_90a");
  EXPECT_TRUE(has(few.ptx, R"(mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32\.tf32\.f32)"));
  for (const std::string& ptx : {with_tma.ptx, few.ptx}) EXPECT_FALSE(has(ptx, R"(cvt\.rna)"));
  for (const Sample& sample : {large, small}) {
    std::string ptx = compile(sample, "sm_80").ptx;
    EXPECT_TRUE(has(ptx, R"(mma\.sync\.aligned\.m16n8k8)")) << sample.name;
    EXPECT_TRUE(has(ptx, R"(cvt\.rna\.tf32\.f32)")) << sample.name;
  }
  GpuCode halves = compile(pipeline_called("plain_product_128x128_f16_t256"), "sm_90a");
  for (const TmaDescriptor& descriptor : halves.tma_descriptors) EXPECT_FALSE(descriptor.tf32);
}

// Operands in registers have no instruction, and stages that are rounded serve nobody else.
TEST(PtxTest, Tf32ProductsReadStagesOfTheirOwn) {
  auto expect_refused = [](Builder& b, const char* why) {
    try {
      compile_gpu(b.finish(), 128, target_of("sm_90a"));
      FAIL() << "compiled";
    } catch (const UserError& error) {
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  Builder registers("registers");
  {
    Builder& b = registers;
    ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
    ValueId tile = b.load({x, zero}, {64, 64});
    b.store({x, zero}, b.dot_tf32(tile, tile, tile));
  }
  expect_refused(registers, "tf32 products multiply whole stages");
  Builder shared("shared");
  {
    Builder& b = shared;
    ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
    ValueId size = b.index(64), ring = b.ring(DType::kF32, {64, 32}, 2);
    b.pipeline(
        2, zero, b.index(2), {},
        [&](ValueId i, ValueId stage) {
          b.tma_load(ring, stage, {x, size, size, size}, zero, b.mul(i, b.index(32)));
        },
        [&](ValueId, ValueId stage, std::span<const ValueId>) {
          ValueId tile = b.read(ring, stage, {64, 32});
          ValueId sums = b.constant(DType::kF32, 0, {64, 64});
          b.store({y, zero}, b.dot_tf32(sums, tile, b.transpose(tile)));
          b.store({y, b.index(4096)}, b.read(ring, stage, {64, 32}));
          return std::vector<ValueId>{};
        });
  }
  expect_refused(shared, "nothing else may read it");
}

// What would wait for itself, or what the host could not encode, is an error that says so.
TEST(PtxTest, RefusesPipelinesThatCannotRun) {
  auto compile = [](int stages, bool constant_sizes, bool same_ring) {
    Builder b("pipeline");
    ValueId x = b.buffer("x", DType::kF16), y = b.buffer("y", DType::kF16);
    ValueId n = b.index_parameter("n"), zero = b.index(0);
    ValueId ring = b.ring(DType::kF16, {8, 64}, stages);
    ValueId rows = constant_sizes ? n : b.add(n, b.index(1));
    b.pipeline(
        stages, zero, n, {},
        [&](ValueId i, ValueId stage) {
          b.tma_load(ring, stage, {x, rows, n, n}, i, zero);
          if (same_ring) b.tma_load(ring, stage, {x, rows, n, n}, i, zero);
        },
        [&](ValueId i, ValueId stage, std::span<const ValueId>) {
          b.store({y, i}, b.read(ring, stage, {8, 64}));
          return std::vector<ValueId>{};
        });
    return compile_gpu(b.finish(), 128, target_of("sm_90a"));
  };
  GpuCode code = compile(2, true, false);
  EXPECT_EQ(code.threads, 160);  // a warp more, that copies
  ASSERT_EQ(code.tma_descriptors.size(), 1u);
  EXPECT_EQ(code.tma_descriptors[0].rows.parameter, 2);
  EXPECT_EQ(code.tma_descriptors[0].box_rows, 8);
  EXPECT_TRUE(code.pdl);
  EXPECT_THROW(compile(1, true, false), UserError);
  EXPECT_THROW(compile(2, false, false), UserError);
  EXPECT_THROW(compile(2, true, true), UserError);
}

// Some bits of a word, and a constant's or another word's beside them: one instruction.
TEST(PtxTest, BitsBesideOthersAreOneInstruction) {
  auto compile = [](int64_t mask, int64_t beside, bool is_word) {
    Builder b("bits");
    ValueId x = b.buffer("x", DType::kU32), y = b.buffer("y", DType::kU32);
    auto number = [&](int64_t value) { return b.integer_constant(DType::kU32, value, {128}); };
    ValueId word = b.load({x, b.index(0)}, {128});
    ValueId other = is_word ? b.binary(Fn::kAnd, b.load({x, b.index(128)}, {128}), number(beside))
                            : number(beside);
    b.store({y, b.index(0)}, b.binary(Fn::kOr, b.binary(Fn::kAnd, word, number(mask)), other));
    std::string ptx = compile_gpu(b.finish(), 128, target_of("sm_90a")).ptx;
    return ptx.find("lop3.b32") != std::string::npos;
  };
  EXPECT_TRUE(compile(0x000f000f, 0x64006400, false));
  EXPECT_TRUE(compile(0x00ff00ff, 0xff00ff00, true));
  EXPECT_FALSE(compile(0x000f000f, 0x64006401, false));  // a bit of both
  EXPECT_FALSE(compile(0x00ff00ff, 0x0f00ff00, true));   // not all bits
}

// Kernels without pipelines launch dependents, and wait, before they read anything.
TEST(PtxTest, KernelsWithPdlLaunchDependentsAndWait) {
  auto compile = [](bool pdl, const char* arch) {
    Builder b("copy");
    ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
    b.store({y, b.index(0)}, b.load({x, b.index(0)}, {128}));
    Kernel kernel = b.finish();
    kernel.pdl = pdl;
    kernel.ctas_per_sm = 2;
    EXPECT_EQ(print(parse(print(kernel))), print(kernel));
    return compile_gpu(kernel, 128, target_of(arch));
  };
  GpuCode code = compile(true, "sm_90a");
  EXPECT_TRUE(code.pdl);
  size_t lets = code.ptx.find("griddepcontrol.launch_dependents"),
         waits = code.ptx.find("griddepcontrol.wait");
  ASSERT_NE(waits, std::string::npos);
  EXPECT_LT(lets, waits);
  EXPECT_LT(waits, code.ptx.find("ld.global"));
  for (const GpuCode& other : {compile(false, "sm_90a"), compile(true, "sm_80")}) {
    EXPECT_FALSE(other.pdl);
    EXPECT_EQ(other.ptx.find("griddepcontrol"), std::string::npos);
  }
}

// TMA boxes of x, one after the other, go through a ring to y.
void tma_copy(Builder& b, ValueId x, ValueId y) {
  ValueId n = b.index_parameter("n"), zero = b.index(0);
  ValueId ring = b.ring(DType::kF16, {8, 64}, 2);
  b.pipeline(
      2, zero, n, {},
      [&](ValueId i, ValueId stage) {
        b.tma_load(ring, stage, {x, n, n, n}, i, zero);
      },
      [&](ValueId i, ValueId stage, std::span<const ValueId>) {
        b.store({y, i}, b.read(ring, stage, {8, 64}));
        return std::vector<ValueId>{};
      });
}

// What no launch writes is fetched at once; only results come after the wait of PDL.
TEST(PtxTest, PipelinesOverConstantsWaitWhereTheyStore) {
  auto compile = [](bool constant) {
    Builder b("pipeline");
    ValueId x = b.buffer("x", DType::kF16, constant), y = b.buffer("y", DType::kF16);
    tma_copy(b, x, y);
    return compile_gpu(b.finish(), 128, target_of("sm_90a")).ptx;
  };
  auto first = [](const std::string& text, const char* what) { return text.find(what); };
  std::string early = compile(true), late = compile(false);
  constexpr const char* kWait = "griddepcontrol.wait";
  ASSERT_NE(first(early, kWait), std::string::npos);
  EXPECT_GT(first(early, kWait), first(early, "mbarrier.try_wait"));
  EXPECT_LT(first(late, kWait), first(late, "mbarrier.try_wait"));
  EXPECT_EQ(first(early, kWait), early.rfind(kWait));
  EXPECT_NE(first(late, kWait), late.rfind(kWait));  // who copies, and who computes
}

// What nobody else touches is written before the wait of PDL, and read.
TEST(PtxTest, BuffersOfALaunchOfItsOwnAreWrittenWithoutWaiting) {
  auto compile = [](bool own) {
    Builder b("pipeline");
    ValueId x = b.buffer("x", DType::kF16, /*constant=*/true), y = b.buffer("y", DType::kF16);
    ValueId room = b.buffer("room", DType::kF16);
    tma_copy(b, x, room);
    b.store({y, b.index(0)}, b.load({room, b.index(0)}, {8, 64}));
    Kernel kernel = b.finish();
    kernel.parameters[2].own = own;
    return compile_gpu(parse(print(kernel)), 128, target_of("sm_90a")).ptx;
  };
  auto waits_of = [](const std::string& text) {
    int count = 0;
    for (size_t at = 0; (at = text.find("griddepcontrol.wait", at)) != text.npos; ++at) ++count;
    return count;
  };
  std::string own = compile(true), shared = compile(false);
  EXPECT_EQ(waits_of(shared), 2);  // in the loop that stores, and where it may not have run
  EXPECT_EQ(waits_of(own), 1);
  EXPECT_LT(own.find("ld.global"), own.find("griddepcontrol.wait"));
  EXPECT_LT(own.find("griddepcontrol.wait"), own.rfind("st.global"));
}

// Once on every way to a store.
TEST(PtxTest, WaitsOnceForTheLaunchBefore) {
  auto waits = [](bool store_before) {
    Builder b("pipeline");
    ValueId x = b.buffer("x", DType::kF16, /*constant=*/true), y = b.buffer("y", DType::kF16);
    ValueId n = b.index_parameter("n"), zero = b.index(0);
    ValueId ring = b.ring(DType::kF16, {8, 64}, 2);
    ValueId none = b.constant(DType::kF16, 0, {8, 64});
    if (store_before) b.store({y, n}, none);
    b.pipeline(
        2, zero, n, {},
        [&](ValueId i, ValueId stage) {
          b.tma_load(ring, stage, {x, n, n, n}, i, zero);
        },
        [&](ValueId i, ValueId stage, std::span<const ValueId>) {
          b.store({y, i}, b.read(ring, stage, {8, 64}));
          b.store({y, b.add(i, n)}, none);
          return std::vector<ValueId>{};
        });
    b.store({y, zero}, none);
    std::string ptx = compile_gpu(b.finish(), 128, target_of("sm_90a")).ptx;
    int found = 0;
    for (size_t at = 0; (at = ptx.find("griddepcontrol.wait", at)) != ptx.npos; ++at) ++found;
    return found;
  };
  EXPECT_EQ(waits(true), 1);
  EXPECT_EQ(waits(false), 2);  // the steps may be none
}

// Rows that a CTA keeps for its products: matrices are loaded from where they are, and a barrier
// behind the store is enough for all steps.
TEST(PtxTest, ProductsReadRowsOfScratch) {
  constexpr int kGroups = 8, kRows = 128, kDepth = 64, kPitch = 72;
  auto compile = [](int offset) {
    Builder b("kept");
    ValueId w = b.buffer("w", DType::kF16, /*constant=*/true), x = b.buffer("x", DType::kF16);
    ValueId y = b.buffer("y", DType::kF32), n = b.index_parameter("n"), zero = b.index(0);
    ValueId ring = b.ring(DType::kF16, {kRows, kDepth}, 2);
    ValueId kept = b.alloc(DType::kF16, 4 * kGroups * kPitch);
    b.store({kept, zero, {b.index(kPitch), b.index(1)}, {}},
            b.load({x, zero}, {2 * kGroups, kDepth}));
    std::vector<ValueId> sums = b.pipeline(
        2, zero, n, {b.constant(DType::kF32, 0, {kRows, 8})},
        [&](ValueId i, ValueId stage) {
          b.tma_load(ring, stage, {w, n, n, n}, i, zero);
        },
        [&](ValueId i, ValueId stage, std::span<const ValueId> carried) {
          ValueId at = b.add(b.mul(i, b.index(kGroups * kPitch)), b.index(offset));
          ValueId rows = b.load({kept, at, {b.index(kPitch), b.index(1)}, {}}, {kGroups, kDepth});
          ValueId left = b.read(ring, stage, {kRows, kDepth});
          return std::vector{b.grouped_dot(carried[0], left, b.transpose(rows), kGroups)};
        });
    b.store({y, zero}, sums[0]);
    return compile_gpu(b.finish(), 256, target_of("sm_90a")).ptx;
  };
  std::string ptx = compile(0);
  size_t first = ptx.find("ldmatrix"), last = ptx.rfind("mma.sync");
  ASSERT_NE(first, std::string::npos);
  size_t steps = ptx.rfind("mbarrier.try_wait", first);
  EXPECT_LT(ptx.find("st.shared"), steps);
  EXPECT_EQ(ptx.substr(steps, last - steps).find("bar.sync"), std::string::npos);
  // Matrices begin with whole units of 16 bytes: other rows are no operand of groups.
  EXPECT_THROW(compile(1), UserError);
}

TEST(PtxTest, RefusesWhatABlockCannotHold) {
  Builder b("large");
  ValueId x = b.buffer("x", DType::kF32), zero = b.index(0);
  ValueId room = b.alloc(DType::kF32, 40 << 10);
  b.store({room, zero}, b.load({x, zero}, {64}));
  b.store({x, zero}, b.load({room, zero}, {64}));
  Kernel kernel = b.finish();
  EXPECT_THROW(compile_gpu(kernel, 128, target_of("sm_86")), UserError);
  GpuTarget large = target_of("sm_90a");
  large.shared_bytes = 227 << 10;
  EXPECT_EQ(compile_gpu(kernel, 128, large).shared_bytes, 160 << 10);
  EXPECT_THROW(compile_gpu(kernel, 100, large), InternalError);
  EXPECT_THROW(compile_gpu(kernel, 2048, large), InternalError);
}

// Nobody reads the transpose, so no product reads what was loaded for it from memory.
TEST(PtxTest, WhatNobodyReadsIsStillEmitted) {
  Builder b("unread");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32), zero = b.index(0);
  b.transpose(b.load({x, zero}, {16, 8}));
  b.store({y, zero}, b.load({x, zero}, {64}));
  EXPECT_FALSE(compile_gpu(b.finish(), 64, target_of("sm_90a")).ptx.empty());
}

}  // namespace
}  // namespace tenon::codegen
