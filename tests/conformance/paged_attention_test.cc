// Attention over pages against float64: sequences of different lengths and ages, pages in any
// order, tokens whose places do not exist. Interpreted where there is no GPU.
#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/convert.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/reference/evaluate.h"
#include "tests/conformance/attention_problem.h"
#include "tests/conformance/scaled_dot_problem.h"

namespace tenon::kernels {
namespace {

struct PagedCase {
  std::string type = "f16";
  int64_t q_heads = 4, kv_heads = 2, depth = 40, page = 16;
  std::string attributes = "scale=0.2";
  bool has_slots = false, has_sinks = false;
  std::vector<int64_t> past = {0, 20, 47}, fresh = {5, 1, 3};  // tokens of each sequence
  int64_t pages = 12, pages_of_sequence = 4;
  std::string codes = "";  // of the pages; else numbers
  bool per_channel = false;

  std::string text() const {
    const std::string size = std::to_string(depth), kv = std::to_string(kv_heads);
    const std::string scale =
        per_channel ? "f32[" + kv + ",1," + size + "]" : std::string("f32[1]");
    const std::string cache =
        (codes.empty() ? type : codes) + "[p," + std::to_string(page) + "," + kv + "," + size + "]";
    const std::string row = std::to_string(q_heads * depth);
    std::string out = "graph paged {\n  input %q: " + type + "[t," + std::to_string(q_heads) + "," +
                      size + "]\n  input %k: " + type + "[t," + kv + "," + size +
                      "]\n  input %v: " + type + "[t," + kv + "," + size +
                      "]\n  input %keys: " + cache + "\n  input %values: " + cache +
                      "\n  input %rows: i64[t]\n  input %positions: i64[t]\n"
                      "  input %table: i32[b,m]\n";
    if (has_slots) out += "  input %slots: i32[t]\n";
    if (has_sinks) out += "  input %sinks: " + type + "[" + std::to_string(q_heads) + "]\n";
    if (!codes.empty()) out += "  input %k_scale: " + scale + "\n  input %v_scale: " + scale + "\n";
    return out + "  %y: " + type + "[t," + row + "], %keys_out: " + cache +
           ", %values_out: " + cache +
           " = tenon::PagedAttention(%q, %k, %v, %keys, %values, %rows, %positions, %table, " +
           (has_slots ? "%slots, " : "_, ") + (has_sinks ? "%sinks" : "_") +
           (codes.empty() ? "" : ", %k_scale, %v_scale") + ") {" + attributes +
           "}\n  output %y\n  output %keys_out\n  output %values_out\n}\n";
  }
};

class Pages {
 public:
  explicit Pages(const PagedCase& one) : case_(one), graph_(ir::parse(one.text())) {}

  std::vector<ReferenceTensor> inputs() const {
    std::mt19937 random(7);
    const int64_t tokens = std::accumulate(case_.fresh.begin(), case_.fresh.end(), int64_t{0});
    std::vector<int64_t> order(static_cast<size_t>(case_.pages));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::shuffle(order, random);
    std::vector<ReferenceTensor> made;
    for (const ir::ValueId id : graph_.inputs()) {
      const ir::Value& value = graph_.value(id);
      std::vector<int64_t> dims;
      for (const Dim& dim : *value.shape) {
        dims.push_back(dim.evaluate([&](std::string_view symbol) {
          return symbol == "t"   ? tokens
                 : symbol == "b" ? static_cast<int64_t>(case_.fresh.size())
                 : symbol == "m" ? case_.pages_of_sequence
                                 : case_.pages;
        }));
      }
      ReferenceTensor tensor = random_tensor(value.dtype, dims, random);
      if (value.name == "table") {
        for (int64_t i = 0; i < tensor.elements(); ++i) {
          tensor.set_integer(i, order[static_cast<size_t>(i % case_.pages)]);
        }
      }
      const double full = case_.codes == "i8" ? 127 : 448;
      for (int64_t i = 0; value.dtype == DType::kF8E4M3FN && i < tensor.elements(); ++i) {
        const double drawn = static_cast<double>(random() % 897) - full;
        tensor.set(i, decode(value.dtype, encode(value.dtype, drawn)));
      }
      for (int64_t i = 0; value.name.ends_with("_scale") && i < tensor.elements(); ++i) {
        tensor.set(i, (2 + static_cast<double>(random() % 64) / 32) / full);
      }
      int64_t token = 0;
      for (size_t row = 0; row < case_.fresh.size(); ++row) {
        for (int64_t i = 0; i < case_.fresh[row]; ++i, ++token) {
          if (value.name == "rows") tensor.set_integer(token, static_cast<int64_t>(row));
          if (value.name == "positions") tensor.set_integer(token, case_.past[row] + i);
          // Some are left out, the others go to a page of their own.
          if (value.name == "slots") tensor.set_integer(token, token % 3 == 0 ? -1 : 2 + token);
        }
      }
      made.push_back(std::move(tensor));
    }
    return made;
  }

  std::string disagrees() const {
    const std::unique_ptr<Executable> executable = build_for_test(graph_, conformance_settings());
    const std::vector<ReferenceTensor> given = inputs();
    const Tolerance of_attention = attention_tolerance(graph_);
    return disagreement(run(*executable, graph_, given), reference::evaluate(graph_, given),
                        [&](size_t output, int64_t index, double expected) {
                          return output == 0 ? of_attention(output, index, expected) : 0;
                        });
  }

 private:
  PagedCase case_;
  ir::Graph graph_;
};

TEST(PagedAttention, SequencesOfDifferentLengths) {
  for (const std::string type : {"f16", "bf16", "f32"}) {
    EXPECT_EQ(Pages({.type = type}).disagrees(), "") << type;
    EXPECT_EQ(Pages({.type = type, .depth = 128, .page = 32}).disagrees(), "") << type;
  }
}

TEST(PagedAttention, WindowsCapsAndSinks) {
  for (const std::string rule : {"left_window=3", "left_window=20", "softcap=1.5", "scale=0.3"}) {
    EXPECT_EQ(Pages({.attributes = rule, .has_sinks = true}).disagrees(), "") << rule;
  }
}

TEST(PagedAttention, PagesOfCodes) {
  for (const std::string codes : {"i8", "f8e4m3fn"}) {
    for (const bool per_channel : {false, true}) {
      EXPECT_EQ(Pages({.codes = codes, .per_channel = per_channel}).disagrees(), "") << codes;
    }
    EXPECT_EQ(Pages({.type = "f32", .depth = 64, .codes = codes, .per_channel = true}).disagrees(),
              "")
        << codes;
  }
}

TEST(PagedAttention, SlotsOfTheCaller) { EXPECT_EQ(Pages({.has_slots = true}).disagrees(), ""); }

// The last tokens have no page: they are not stored, and see what there is.
TEST(PagedAttention, MoreTokensThanPages) {
  EXPECT_EQ(Pages({.past = {0, 62, 47}, .fresh = {5, 4, 3}}).disagrees(), "");
}

TEST(PagedAttention, DecodeOfEach) {
  EXPECT_EQ(Pages({.past = {0, 15, 63}, .fresh = {1, 1, 1}}).disagrees(), "");
}

}  // namespace
}  // namespace tenon::kernels
