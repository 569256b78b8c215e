// The instructions that hot loops stand on do come out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "tests/codegen/host_kernel.h"

namespace tenon::codegen {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

std::string assembly(const Kernel& kernel, const std::string& target) {
  return compile_to_text(kernel, host_target(target), "asm");
}

bool is_x86() { return detect_host().arch == HostArch::kX86_64; }

Kernel gemm(int m, int n, int k_step = 1) {
  Builder b("gemm");
  ValueId a = b.buffer("a", DType::kF32), panel = b.buffer("b", DType::kF32);
  ValueId c = b.buffer("c", DType::kF32);
  ValueId k = b.index_parameter("k"), stride = b.index_parameter("stride");
  auto acc = b.loop(b.index(0), k, b.index(k_step), {b.constant(DType::kF32, 0, {m, n})},
                    [&](ValueId i, std::span<const ValueId> in) -> std::vector<ValueId> {
                      ValueId left = b.load({a, i, {stride, b.index(1)}, {}}, {m, k_step});
                      ValueId right = b.load({panel, b.mul(i, b.index(n))}, {k_step, n});
                      return {b.dot(in[0], left, right)};
                    });
  b.store({c, b.index(0)}, acc[0]);
  return b.finish();
}

Kernel lookup(DType dtype, DType code_type, int lanes, double step = 3) {
  return map_kernel(
      {code_type}, dtype,
      [&](Builder& b, std::vector<ValueId> x) {
        std::vector<double> values;
        for (int i = 0; i < 16; ++i) values.push_back(i * step);
        return b.lookup(b.table(dtype, values), x[0]);
      },
      lanes);
}

// Two rows by two columns.
Kernel byte_matrices(DType a_type) {
  Builder b("matrices");
  ValueId acc = b.buffer("acc", DType::kI32), x = b.buffer("x", a_type);
  ValueId w = b.buffer("w", DType::kI8);
  ValueId left = b.reshape(b.load({x, b.index(0)}, {16}), {2, 8});
  ValueId right = b.reshape(b.load({w, b.index(0)}, {16}), {2, 8});
  ValueId sum = b.reshape(b.load({acc, b.index(0)}, {4}), {2, 2});
  b.store({acc, b.index(0)}, b.reshape(b.dot_i8(sum, left, right), {4}));
  return b.finish();
}

Kernel bytes(DType x_type, DType w_type) {
  Builder b("bytes");
  ValueId acc = b.buffer("acc", DType::kI32), x = b.buffer("x", x_type);
  ValueId w = b.buffer("w", w_type);
  ValueId sum = b.load({acc, b.index(0)}, {2, 16});
  b.store({acc, b.index(0)},
          b.dot_i8(sum, b.load({x, b.index(0)}, {2, 4}), b.load({w, b.index(0)}, {16, 4})));
  return b.finish();
}

// No spill: nothing is stored to the stack.
void expect_no_vector_spills(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    bool stack = line.find("(%rsp)") != line.npos || line.find("[sp") != line.npos;
    bool vector = line.find("vmov") != line.npos || line.find("str\tq") != line.npos;
    EXPECT_FALSE(stack && vector) << line;
  }
}

TEST(AssemblyTest, MicroKernelsMultiplyFromMemoryWithoutSpills) {
  if (is_x86()) {
    std::string wide = assembly(gemm(6, 64), "x86_64-avx512");
    EXPECT_THAT(wide, HasSubstr("vfmadd231ps\t%zmm"));
    EXPECT_THAT(wide, HasSubstr("vbroadcastss\t("));
    expect_no_vector_spills(wide);
    std::string narrow = assembly(gemm(6, 16), "x86_64-avx2");
    EXPECT_THAT(narrow, HasSubstr("vfmadd231ps\t%ymm"));
    EXPECT_THAT(narrow, Not(HasSubstr("zmm")));
    expect_no_vector_spills(narrow);
    return;
  }
  std::string neon = assembly(gemm(6, 16), "aarch64-neon");
  EXPECT_THAT(neon, HasSubstr("fmla"));
  expect_no_vector_spills(neon);
  // Four k at once: factors are lanes of what one load brings, where registers are left for them.
  std::string lanes = assembly(gemm(4, 16, 4), "aarch64-neon");
  EXPECT_THAT(lanes, ContainsRegex("fmla[^\n]*\\.s\\[3\\]"));
  EXPECT_THAT(lanes, Not(ContainsRegex("ld(r\ts|p\ts|1r)")));
  expect_no_vector_spills(lanes);
  EXPECT_THAT(assembly(gemm(6, 16, 4), "aarch64-neon"), Not(HasSubstr(".s[3]")));
}

TEST(AssemblyTest, TablesStayInRegisters) {
  if (is_x86()) {
    EXPECT_THAT(assembly(lookup(DType::kF32, DType::kU32, 16), "x86_64-avx512"),
                ContainsRegex("vperm(ps|d)"));
    std::string avx2 = assembly(lookup(DType::kF32, DType::kU32, 8), "x86_64-avx2");
    EXPECT_THAT(avx2, ContainsRegex("vperm(ps|d)"));
    EXPECT_THAT(avx2, HasSubstr("vblendvps"));
    EXPECT_THAT(assembly(lookup(DType::kI8, DType::kU8, 64), "x86_64-avx512"),
                HasSubstr("vpshufb"));
    return;
  }
  const auto floats = [](double step) {
    return assembly(lookup(DType::kF32, DType::kU32, 16, step), "aarch64-neon");
  };
  EXPECT_THAT(floats(0.1), ContainsRegex("tbl\t[^{]*\\{ *[^,]*,[^,]*,[^,]*,"));  // four registers
  EXPECT_THAT(floats(3), ContainsRegex("tbl\t[^{]*\\{ *[^,]*,[^,]*\\}"));  // two bytes say all
  EXPECT_THAT(floats(1), HasSubstr("cvtf"));
  EXPECT_THAT(floats(1), Not(HasSubstr("tbl\t")));
  EXPECT_THAT(assembly(lookup(DType::kI8, DType::kU8, 16), "aarch64-neon"), HasSubstr("tbl\t"));
}

TEST(AssemblyTest, BytesUseTheDotInstructions) {
  if (is_x86()) {
    EXPECT_THAT(assembly(bytes(DType::kU8, DType::kI8), "x86_64-avx512vnni"),
                HasSubstr("vpdpbusd"));
    EXPECT_THAT(assembly(bytes(DType::kU8, DType::kI8), "x86_64-avxvnni"), HasSubstr("vpdpbusd"));
    std::string plain = assembly(bytes(DType::kU8, DType::kI8), "x86_64-avx2");
    EXPECT_THAT(plain, HasSubstr("vpmaddwd"));
    EXPECT_THAT(plain, Not(HasSubstr("vpmaddubsw")));  // it saturates
    // A signed row is broadcast from memory, with nothing beside the product.
    const std::string row = assembly(bytes(DType::kI8, DType::kU8), "x86_64-avx512vnni");
    EXPECT_THAT(row, ContainsRegex("vpdpbusd\t.*\\{1to16\\}"));
    EXPECT_THAT(row, Not(HasSubstr("vpxor")));
    return;
  }
  EXPECT_THAT(assembly(bytes(DType::kU8, DType::kI8), "aarch64-i8mm"), HasSubstr("usdot"));
  EXPECT_THAT(assembly(bytes(DType::kU8, DType::kI8), "aarch64-dotprod"), HasSubstr("sdot"));
  const std::string matrices = assembly(byte_matrices(DType::kI8), "aarch64-i8mm");
  EXPECT_THAT(matrices, HasSubstr("\tsmmla\t"));
  EXPECT_THAT(matrices, Not(ContainsRegex("\t(zip|uzp|ext|mov\tv|dup)")));  // registers as loaded
  EXPECT_THAT(assembly(byte_matrices(DType::kU8), "aarch64-i8mm"), HasSubstr("\tusmmla\t"));
  EXPECT_THAT(assembly(byte_matrices(DType::kI8), "aarch64-dotprod"), HasSubstr("sdot"));
}

// Four sums, two tiles of each factor: nothing else between the products of a loop's trip.
TEST(AssemblyTest, BlocksInMemoryUseTileRegisters) {
  if (!is_x86()) GTEST_SKIP() << "needs an x86_64 backend";
  Builder b("tiles");
  ValueId c = b.buffer("c", DType::kF32), a = b.buffer("a", DType::kBF16);
  ValueId w = b.buffer("b", DType::kBF16), k = b.index_parameter("k");
  b.tile_dot({c, b.index(0)}, {a, b.index(0)}, {w, b.index(0)}, {32, 32, b.mul(k, b.index(16)), k});
  const std::string text = assembly(b.finish(), "x86_64-amx");
  const auto count = [&](std::string_view word) {
    int found = 0;
    for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
    return found;
  };
  EXPECT_EQ(count("ldtilecfg"), 1);
  EXPECT_EQ(count("tileloadd"), 4 + 4);
  EXPECT_EQ(count("tdpbf16ps"), 4);
  EXPECT_EQ(count("tilestored"), 4);
  EXPECT_EQ(count("tilerelease"), 1);
}

// fmla overwrites its addend: a copy of a constant would take a slot of the pipes that multiply.
TEST(AssemblyTest, ConstantAddendsAreLoadedNotCopied) {
  const Kernel polynomial = map_kernel(
      {DType::kF32}, DType::kF32,
      [](Builder& b, std::vector<ValueId> x) {
        ValueId sum = x[0];
        for (const double c : {0.1, 0.2, 0.3}) {
          sum = b.fma(sum, x[0], b.constant(DType::kF32, c, b.type(sum).shape));
        }
        return sum;
      },
      16);
  if (is_x86()) {  // three operands: the constants stay where they are
    EXPECT_THAT(assembly(polynomial, "x86_64-avx2"), Not(HasSubstr("(%rsp)")));
    return;
  }
  const std::string text = assembly(polynomial, "aarch64-neon");
  EXPECT_THAT(text, ContainsRegex("ldr\tq[0-9]+, \\[sp"));
  EXPECT_THAT(text, Not(ContainsRegex("mov\tv[0-9]+\\.16b")));
}

TEST(AssemblyTest, WholeLoadsCarryNoMasks) {
  Builder b("copy");
  ValueId x = b.buffer("x", DType::kF32), y = b.buffer("y", DType::kF32);
  b.store({y, b.index(0)}, b.load({x, b.index(0)}, {16}));
  std::string text = assembly(b.finish(), is_x86() ? "x86_64-avx512" : "aarch64-neon");
  EXPECT_THAT(text, Not(HasSubstr("kmov")));
  EXPECT_THAT(text, Not(HasSubstr("vpcmp")));
}

}  // namespace
}  // namespace tenon::codegen
