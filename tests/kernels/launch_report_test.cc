#include "kernels/launch_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "graph_partitioner/ir/text.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kWeightBytes = 512 * 256 / 2, kScaleBytes = 512 * 16 * 2;

ir::Graph product(const std::string& rows) {
  return ir::parse(
      "graph main {\n  input %x: f32[" + rows + R"(,256]
    const %w: f4e2m1[512,256] = sha256:00 bytes:65536
    const %scales: f8e4m3fn[512,16] = sha256:01 bytes:8192
    %y: f32[)" +
      rows +
      R"(,512] = tenon::ScaledDot(%x, %w, _, _, %scales) {b_k_last=1, block_b=16, result="f32"}
    output %y
  })");
}

std::vector<LaunchReport> reports(const ir::Graph& graph, const std::string& host,
                                  Precision precision = Precision::kInt8) {
  Settings settings;
  settings.host = codegen::host_target(host);
  settings.host.threads = 4;
  settings.precision = precision;
  const ir::Node& node = graph.node(graph.order().front());
  const Choice choice = select(graph, node, settings);
  if (!choice.ok()) throw std::invalid_argument(choice.reason());
  const Lowered lowered = choice.lower();
  return describe_launches(lowered, SymbolBinding(graph), settings.host);
}

const LaunchReport& find(const std::vector<LaunchReport>& launches, const std::string& kernel) {
  const auto found = std::ranges::find(launches, kernel, &LaunchReport::kernel);
  if (found == launches.end()) throw std::out_of_range("no launch of " + kernel);
  return *found;
}

TEST(LaunchReport, ProductsTellTilesBytesAndOperations) {
  const auto launches = reports(product("batch,m"), "aarch64-dotprod");
  const LaunchReport &one = find(launches, "dot_row_int8"), &many = find(launches, "dot_int8");
  EXPECT_EQ(one.tile_rows, 1);
  EXPECT_GT(many.tile_rows, 1);
  for (const LaunchReport* launch : {&one, &many}) {
    EXPECT_EQ(launch->tile_columns, 16);
    EXPECT_EQ(launch->weight_bytes, kWeightBytes + kScaleBytes);
    ASSERT_EQ(launch->work.size(), 1u) << "idle for the other's rows";
    EXPECT_GT(launch->work[0].compute_us, 0);
  }
  EXPECT_EQ(one.work[0].rows, 1);
  EXPECT_EQ(one.work[0].tasks, 512 / 16);
  EXPECT_EQ(one.work[0].flops, 2 * 256 * 512);
  EXPECT_EQ(many.work[0].rows, 128);
  EXPECT_EQ(many.work[0].flops, 2 * 128 * 256 * 512);
}

TEST(LaunchReport, RowsOfTheModelCount) {
  const auto launches = reports(product("7"), "aarch64-dotprod");
  ASSERT_EQ(find(launches, "dot_int8").work.size(), 1u);
  EXPECT_EQ(find(launches, "dot_int8").work[0].rows, 7);
}

TEST(LaunchReport, WhatMakesRowsRunsForOneAndForMany) {
  const auto launches = reports(product("m"), "aarch64-dotprod");
  const LaunchReport& rounding = find(launches, "int8_rows");
  EXPECT_EQ(rounding.tile_columns, 0);
  EXPECT_EQ(rounding.weight_bytes, 0);
  ASSERT_EQ(rounding.work.size(), 2u);
  EXPECT_EQ(rounding.work[0].rows, 1);
  EXPECT_EQ(rounding.work[1].rows, 128);
  EXPECT_EQ(rounding.work[1].flops, 0);
}

TEST(LaunchReport, NamesTheInstructionsThatMultiply) {
  const ir::Graph graph = product("m");
  const auto isa = [&](const std::string& host, Precision precision, const std::string& kernel) {
    return find(reports(graph, host, precision), kernel).isa;
  };
  EXPECT_EQ(isa("aarch64-dotprod", Precision::kInt8, "dot_int8"), "dotprod");
  EXPECT_EQ(isa("aarch64-dotprod", Precision::kInt8, "int8_rows"), "neon");
  EXPECT_EQ(isa("aarch64-i8mm", Precision::kInt8, "dot_int8"), "i8mm");
  EXPECT_EQ(isa("aarch64-i8mm", Precision::kInt8, "dot_row_int8"), "dotprod");
  EXPECT_EQ(isa("aarch64-neon", Precision::kExact, "dot_row"), "neon");
  EXPECT_EQ(isa("x86_64-avx2", Precision::kInt8, "dot_row_int8"), "avx2");
  EXPECT_EQ(isa("x86_64-avxvnni", Precision::kInt8, "dot_int8"), "avxvnni");
  EXPECT_EQ(isa("x86_64-avx512", Precision::kInt8, "dot_row_int8"), "avx512bw");
  EXPECT_EQ(isa("x86_64-avx512vnni", Precision::kInt8, "dot_row_int8"), "avx512vnni");
  EXPECT_EQ(isa("x86_64-avx512vnni", Precision::kInt8, "dot_int8"), "avx512vnni");
  EXPECT_EQ(isa("x86_64-avx512vnni", Precision::kExact, "dot_rows"), "avx512f");
  EXPECT_EQ(isa("x86_64-amx", Precision::kInt8, "dot_tiles"), "amx-bf16");
  EXPECT_EQ(isa("x86_64-amx", Precision::kInt8, "dot_int8"), "avx512vnni");
}

}  // namespace
}  // namespace tenon::kernels
