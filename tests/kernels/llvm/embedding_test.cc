// Rows picked from a block-quantised table: only these are dequantised, on the host and on a GPU.
// The table has a prime number of rows, so that nothing else has as many, and is too large for
// constants that are folded.
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/convert.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/selector.h"
#include "tests/kernels/run_graph.h"

namespace tenon::kernels {
namespace {

constexpr int64_t kRows = 65537, kWidth = 64;

std::string constant(const char* name, const char* type, int64_t columns, size_t bytes,
                     unsigned seed) {
  std::mt19937 random(seed);
  std::string text = "  const %" + std::string(name) + ": " + type + "[" + std::to_string(kRows) +
                     "," + std::to_string(columns) + "] = hex:";
  constexpr char kDigits[] = "0123456789abcdef";
  for (size_t i = 0; i < 2 * bytes; ++i) text += kDigits[random() % 8];  // no NaN in any type
  return text + "\n";
}

struct Table {
  const char* name;
  std::string constants;
  const char* rows;  // from %i, i64[b,s], to %y, f32 or f16 [b,s,64]
};

std::vector<Table> tables() {
  const auto codes = [](const char* type, int64_t columns, size_t bits) {
    return constant("w", type, columns, kRows * kWidth * bits / 8, 1);
  };
  return {
      {"int4", codes("i4", kWidth, 4) + constant("k", "f32", 2, kRows * 2 * 4, 2),
       R"(  %d: f32[65537,64] = DequantizeLinear@21(%w, %k) {axis=1, block_size=32}
  %y: f32[b,s,64] = Gather@13(%d, %i) {axis=0}
)"},
      {"nvfp4",
       codes("f4e2m1", kWidth, 4) + constant("k", "f8e4m3fn", 4, kRows * 4, 2) +
           "  const %g: f32[] = hex:0000003f\n",
       R"(  %r: f32[65537,4] = DequantizeLinear@23(%k, %g)
  %d: f32[65537,64] = DequantizeLinear@23(%w, %r) {axis=-1, block_size=16}
  %h: f16[65537,64] = Cast@13(%d) {to=10}
  %y: f16[b,s,64] = Gather@13(%h, %i) {axis=0}
)"},
      {"fp8", codes("f8e4m3fn", kWidth, 8) + constant("k", "f32", 1, kRows * 4, 2),
       R"(  %d: f32[65537,64] = DequantizeLinear@21(%w, %k) {axis=1, block_size=64}
  %y: f32[b,s,64] = Gather@13(%d, %i) {axis=0}
)"},
      {"gather_block_quantized",
       codes("u8", kWidth / 2, 4) + constant("k", "f32", 2, kRows * 2 * 4, 2),
       R"(  %y: f32[b,s,64] = com.microsoft::GatherBlockQuantized@1(%w, %i, %k) {bits=4, block_size=32, gather_axis=0, quantize_axis=1}
)"},
      {"gather_block_quantized_zero",
       codes("u8", kWidth / 2, 4) + constant("k", "f16", 2, kRows * 2 * 2, 2) +
           constant("z", "u8", 1, kRows, 3),
       R"(  %y: f16[b,s,64] = com.microsoft::GatherBlockQuantized@1(%w, %i, %k, %z) {bits=4, block_size=32, gather_axis=0, quantize_axis=1}
)"},
  };
}

ir::Graph graph_of(const Table& table) {
  return ir::parse("graph g {\n  input %i: i64[b,s]\n" + table.constants + table.rows +
                   "  output %y\n}\n");
}

size_t constant_bytes(const ir::Graph& graph, const std::set<ir::ValueId>& ids) {
  size_t bytes = 0;
  for (const ir::ValueId id : ids) {
    if (graph.value(id).is_constant()) bytes += graph.value(id).constant->bytes;
  }
  return bytes;
}

class Embedding : public testing::TestWithParam<Table> {};

TEST_P(Embedding, OnlyPickedRowsAreDequantised) {
  const ir::Graph imported = graph_of(GetParam()), fused = fuse(imported);
  Settings gpu = test_settings();
  gpu.gpu = codegen::GpuTarget{};
  Settings host = test_settings();
  host.gpu.reset();
  std::set<ir::ValueId> read;
  size_t kernels = 0;
  for (const ir::NodeId id : fused.order()) {
    const ir::Node& node = fused.node(id);
    read.insert(node.inputs.begin(), node.inputs.end());
    for (const ir::ValueId output : node.outputs) {
      for (const Dim& dim : *fused.value(output).shape) {
        EXPECT_FALSE(dim.is(kRows)) << "the whole table is computed:\n" << ir::print(fused);
      }
    }
    for (const Settings& settings : {host, gpu}) {
      const Choice choice = select(fused, node, settings);
      ASSERT_TRUE(choice.ok()) << choice.reason();
      const Lowered lowered = choice.lower();
      EXPECT_TRUE(lowered.packed.empty() && lowered.scratch.empty());
      if (settings.gpu) kernels += lowered.launches.size();
      for (const Launch& launch : lowered.launches) {
        const auto tasks = launch.tasks.evaluate([](std::string_view) { return 2; });
        EXPECT_LE(tasks, 4 * kWidth) << "for four rows";
      }
    }
  }
  EXPECT_EQ(kernels, 1u) << ir::print(fused);
  read.erase(ir::kNoValue);
  std::set<ir::ValueId> stored;
  for (const ir::NodeId id : imported.order()) {
    const std::vector<ir::ValueId>& inputs = imported.node(id).inputs;
    stored.insert(inputs.begin(), inputs.end());
  }
  EXPECT_LE(constant_bytes(fused, read), constant_bytes(imported, stored) + 64);
}

INSTANTIATE_TEST_SUITE_P(Tables, Embedding, testing::ValuesIn(tables()),
                         [](const auto& table) { return std::string(table.param.name); });

}  // namespace
}  // namespace tenon::kernels
