// The weights of several products in one packed buffer: where each element goes, and what is
// refused.
#include "kernels/llvm/scaled_dot/dot_sections.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "graph_partitioner/ir/text.h"
#include "tests/kernels/llvm/dot_parts.h"

namespace tenon::kernels {
namespace {

// Constants of a text are zeros: these are its own.
void fill(ir::Graph& graph, std::string_view name, std::mt19937& random) {
  ir::Value& value = graph.value(graph.find(name));
  std::vector<std::byte> bytes(value.constant->bytes);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0x77);
  value.constant = ir::Tensor::copy(value.dtype, value.constant->dims, bytes);
}

std::vector<DotPart> parts(const ir::Graph& graph) {
  std::vector<ir::Node> nodes;
  for (const ir::NodeId id : graph.order()) nodes.push_back(graph.node(id));
  return dot_parts(graph, nodes);
}

std::vector<std::byte> packed(const ir::Graph& graph) {
  DotSections dots = plan_sections(graph, parts(graph));
  EXPECT_TRUE(dots.support) << dots.support.reason;
  Lowered lowered;
  const BufferArgument units = pack_sections(graph, dots, lowered);
  const PackedConstant& constant = lowered.packed.at(static_cast<size_t>(units.id));
  std::vector<std::byte> bytes(constant.bytes);
  constant.pack(0, bytes);
  return bytes;
}

ir::Graph three_f16() {
  std::mt19937 random(1);
  ir::Graph graph = ir::parse(R"(graph main {
    input %x: f16[m,72]
    const %q: f16[130,72] = sha256:00 bytes:18720
    const %k: f16[72,64] = sha256:01 bytes:9216
    const %v: f16[128,72] = sha256:02 bytes:18432
    %a: f16[m,130] = tenon::ScaledDot(%x, %q) {b_k_last=1, result="f16"}
    %b: f16[m,64] = tenon::ScaledDot(%x, %k) {result="f16"}
    %c: f16[m,128] = tenon::ScaledDot(%x, %v) {b_k_last=1, result="f16"}
    output %a
    output %b
    output %c
  })");
  for (const char* name : {"q", "k", "v"}) fill(graph, name, random);
  return graph;
}

ir::Graph gated(std::string_view constants, std::string_view gate, std::string_view up,
                std::string_view n = "100") {
  std::string text = R"(graph main {
    input %x: f16[m,128]
    CONSTANTS
    %u: f16[m,N] = tenon::ScaledDot(%x, UP
    %y: f16[m,N] = tenon::ScaledDot(%x, GATE body {
      input %g: f16[m,N]
      input %u: f16[m,N]
      %y: f16[m,N] = Mul(%g, %u)
      output %y
    }
    output %y
  })";
  const auto replace = [&](std::string_view from, std::string_view to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
      text.replace(at, from.size(), to);
    }
  };
  replace("CONSTANTS", constants);
  replace("UP", up);
  replace("GATE", gate);
  replace("m,N]", "m," + std::string(n) + "]");
  return ir::parse(text);
}

ir::Graph gated_nvfp4() {
  std::mt19937 random(2);
  ir::Graph graph = gated(R"(const %wg: f4e2m1[100,128] = sha256:00 bytes:6400
    const %sg: f8e4m3fn[100,8] = sha256:01 bytes:800
    const %wu: f4e2m1[100,128] = sha256:02 bytes:6400
    const %su: f8e4m3fn[100,8] = sha256:03 bytes:800)",
                          R"(%wg, _, _, %sg, _, _, _, %u) {b_k_last=1, block_b=16, result="f16"})",
                          R"(%wu, _, _, %su) {b_k_last=1, block_b=16, result="f16"})");
  for (const char* name : {"wg", "sg", "wu", "su"}) fill(graph, name, random);
  return graph;
}

TEST(DotSections, BeginWithWholeUnits) {
  const ir::Graph graph = three_f16();
  const DotSections dots = plan_sections(graph, parts(graph));
  ASSERT_EQ(dots.sections.size(), 3u);
  EXPECT_EQ(dots.sections[0].first_unit, 0);
  EXPECT_EQ(dots.sections[1].first_unit, 2);
  EXPECT_EQ(dots.sections[2].first_unit, 3);
  EXPECT_EQ(dots.layout.n, 4 * 128);
  EXPECT_EQ(dots.layout.row_units(), 4);
}

TEST(DotSections, FollowEachOther) {
  const ir::Graph graph = three_f16();
  const std::vector<std::byte> bytes = packed(graph);
  const auto* at = reinterpret_cast<const uint16_t*>(bytes.data());
  ASSERT_EQ(bytes.size(), size_t{4 * 2 * 128 * 64 * 2});
  struct Weight {
    const char* name;
    int64_t first_unit, n;
    bool k_last;
  };
  for (const Weight& weight :
       {Weight{"q", 0, 130, true}, {"k", 2, 64, false}, {"v", 3, 128, true}}) {
    const auto* from =
        reinterpret_cast<const uint16_t*>(graph.value(graph.find(weight.name)).constant->data);
    for (int64_t n = 0; n < weight.n; ++n) {
      for (int64_t k = 0; k < 72; ++k) {
        const int64_t unit = (weight.first_unit + n / 128) * 2 + k / 64;
        ASSERT_EQ(at[(unit * 128 + n % 128) * 64 + k % 64],
                  from[weight.k_last ? n * 72 + k : k * weight.n + n])
            << weight.name << " " << n << " " << k;
      }
    }
  }
  // What is behind the end of a weight is zero.
  EXPECT_EQ(at[(2 * 128 + 2) * 64], 0);
  EXPECT_EQ(at[(4 * 128 + 64) * 64], 0);
}

TEST(DotSections, PairsAlternateInEightRows) {
  const ir::Graph graph = gated_nvfp4();
  const DotSections dots = plan_sections(graph, parts(graph));
  ASSERT_EQ(dots.sections.size(), 1u);
  EXPECT_TRUE(dots.sections[0].is_paired());
  EXPECT_EQ(dots.layout.n, 200);
  const std::vector<std::byte> before = packed(graph);
  const auto unit_bytes = static_cast<size_t>(dots.layout.unit_words()) * 4;
  std::mt19937 random(3);
  for (int i = 0; i < 64; ++i) {
    const int half = i % 2;  // up comes first: gate takes its result
    const int64_t n = random() % 100, k = random() % 128;
    ir::Graph other = graph;
    ir::Value& weight = other.value(other.find(half == 0 ? "wu" : "wg"));
    std::vector<std::byte> bytes(weight.constant->data,
                                 weight.constant->data + weight.constant->bytes);
    bytes[static_cast<size_t>((n * 128 + k) / 2)] ^= k % 2 == 0 ? std::byte{1} : std::byte{16};
    weight.constant = ir::Tensor::copy(weight.dtype, weight.constant->dims, bytes);
    const std::vector<std::byte> after = packed(other);
    std::vector<size_t> changed;
    for (size_t at = 0; at < after.size(); ++at) {
      if (after[at] != before[at]) changed.push_back(at);
    }
    ASSERT_EQ(changed.size(), 1u);
    // The unit, and in it the four lanes of rows g and g + 8, 16 bytes each.
    const int64_t row = n % 64 / 8 * 16 + n % 8;
    const auto first = static_cast<size_t>(n / 64 * 2 + k / 64) * unit_bytes +
                       static_cast<size_t>(row / 16 * 32 + row % 8 * 4) * 16;
    EXPECT_GE(changed[0], first);
    EXPECT_LT(changed[0], first + 64);
  }
}

TEST(DotSections, WeightsKeepTheirSize) {
  std::mt19937 random(4);
  ir::Graph graph = gated(R"(const %wg: f16[128,128] = sha256:00 bytes:32768
    const %wu: f16[128,128] = sha256:01 bytes:32768)",
                          R"(%wg, _, _, _, _, _, _, %u) {b_k_last=1, result="f16"})",
                          R"(%wu) {b_k_last=1, result="f16"})", "128");
  EXPECT_EQ(packed(graph).size(), 2u * 32768u);
}

TEST(DotSections, RefuseWeightsThatDequantizeDifferently) {
  ir::Graph graph = gated(R"(const %wg: f16[128,128] = sha256:00 bytes:32768
    const %wu: f8e4m3fn[128,128] = sha256:01 bytes:16384)",
                          R"(%wg, _, _, _, _, _, _, %u) {b_k_last=1, result="f16"})",
                          R"(%wu) {b_k_last=1, result="f16"})", "128");
  const DotSections dots = plan_sections(graph, parts(graph));
  EXPECT_FALSE(dots.support);
  EXPECT_NE(dots.support.reason.find("different formats"), std::string::npos)
      << dots.support.reason;
}

TEST(DotSections, RefuseThreeInARow) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f16[m,64]
    const %w: f16[64,8] = sha256:00 bytes:1024
    %a: f16[m,8] = tenon::ScaledDot(%x, %w) {result="f16"}
    %b: f16[m,8] = tenon::ScaledDot(%x, %w, _, _, _, _, _, _, %a) {result="f16"} body {
      input %s: f16[m,8]
      input %t: f16[m,8]
      %o: f16[m,8] = Mul(%s, %t)
      output %o
    }
    %c: f16[m,8] = tenon::ScaledDot(%x, %w, _, _, _, _, _, _, %b) {result="f16"} body {
      input %s: f16[m,8]
      input %t: f16[m,8]
      %o: f16[m,8] = Mul(%s, %t)
      output %o
    }
    output %c
  })");
  const DotSections dots = plan_sections(graph, parts(graph));
  EXPECT_FALSE(dots.support);
  EXPECT_NE(dots.support.reason.find("in a chain"), std::string::npos) << dots.support.reason;
}

// 16640 scales are a whole piece of those that are searched at once, and some more.
TEST(DotSections, FindAScaleThatBytesCannotHoldWhereverItStands) {
  constexpr int64_t kCount = 16640;
  const auto reads_bytes = [](std::string_view type, std::optional<int64_t> at, uint8_t code) {
    ir::Graph graph =
        ir::parse(fmt::format(R"(graph main {{
      input %x: f16[m,256]
      const %w: f4e2m1[1040,256] = sha256:00 bytes:133120
      const %s: {}[1040,{}] = sha256:01 bytes:{}
      %y: f16[m,1040] = tenon::ScaledDot(%x, %w, _, _, %s) {{b_k_last=1, block_b={}, result="f16"}}
      output %y
    }})",
                              type, type == "f8e8m0" ? 8 : 16,
                              type == "f8e8m0" ? kCount / 2 : kCount, type == "f8e8m0" ? 32 : 16));
    ir::Value& scales = graph.value(graph.find("s"));
    std::vector<std::byte> bytes(scales.constant->bytes, std::byte{120});
    if (at) bytes.at(static_cast<size_t>(*at)) = std::byte{code};
    scales.constant = ir::Tensor::copy(scales.dtype, scales.constant->dims, bytes);
    const DotSections dots = plan_sections(graph, parts(graph));
    return dots.support && dots.layout.scale_rule != nullptr;
  };
  EXPECT_TRUE(reads_bytes("f8e4m3fn", std::nullopt, 0));
  for (const int64_t at : {int64_t{0}, int64_t{16383}, int64_t{16384}, kCount - 1}) {
    EXPECT_TRUE(reads_bytes("f8e4m3fn", at, 126)) << at;
    EXPECT_FALSE(reads_bytes("f8e4m3fn", at, 127)) << at;
    EXPECT_FALSE(reads_bytes("f8e4m3fn", at, 0x81)) << at;
  }
  EXPECT_TRUE(reads_bytes("f8e8m0", std::nullopt, 0));
  for (const int64_t at : {int64_t{0}, kCount / 2 - 1}) {
    EXPECT_TRUE(reads_bytes("f8e8m0", at, 118)) << at;
    EXPECT_FALSE(reads_bytes("f8e8m0", at, 255)) << at;
    EXPECT_FALSE(reads_bytes("f8e8m0", at, 20)) << at;
  }
}

TEST(DotSections, RefuseABiasThatIsAResult) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f16[m,64]
    const %w: f16[64,8] = sha256:00 bytes:1024
    %a: f16[m,8] = tenon::ScaledDot(%x, %w) {result="f16"}
    %b: f16[m,8] = tenon::ScaledDot(%x, %w, _, _, _, _, _, %a) {result="f16"}
    output %b
  })");
  const DotSections dots = plan_sections(graph, parts(graph));
  EXPECT_FALSE(dots.support);
  EXPECT_NE(dots.support.reason.find("bias"), std::string::npos) << dots.support.reason;
}

}  // namespace
}  // namespace tenon::kernels
