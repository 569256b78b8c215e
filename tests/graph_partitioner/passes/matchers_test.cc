// The golden texts of normalize and the matchers, judged: what the passes wrote computes what the
// model said.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph_partitioner/pipeline.h"
#include "tests/graph_partitioner/equivalence.h"

namespace tenon {
namespace {

struct Case {
  std::string file, title, passes, graph;
};

void PrintTo(const Case& one, std::ostream* out) { *out << one.file << ": " << one.title; }

std::vector<Case> read_cases(const std::string& file) {
  std::ifstream stream("tests/golden/" + file + ".txt");
  std::vector<Case> cases;
  std::string line;
  bool in_graph = false;
  while (std::getline(stream, line)) {
    if (line.rfind("CASE ", 0) == 0) {
      cases.push_back({file, line.substr(5), "", ""});
      in_graph = true;
    } else if (line == "EXPECT") {
      in_graph = false;
    } else if (line.rfind("RUN ", 0) == 0) {
      cases.back().passes = line.substr(4);
    } else if (in_graph) {
      cases.back().graph += line + "\n";
    }
  }
  return cases;
}

constexpr const char* kFiles[] = {"normalize",        "match_scaled_dot", "match_attention",
                                  "match_rotary",     "match_new_heads",  "match_rounded_attention",
                                  "read_packed_heads"};

// What is left alone needs no judge, and may be a model that has no result.
// com.microsoft::Attention and Einsum, which the judge does not know, have tests of their own
// below.
bool can_be_judged(const Case& one) {
  return one.title.rfind("left alone", 0) != 0 &&
         one.graph.find("com.microsoft::Attention@") == std::string::npos &&
         one.graph.find("Einsum@") == std::string::npos;
}

std::vector<Case> judged_cases() {
  std::vector<Case> judged;
  for (const char* file : kFiles) {
    std::ranges::copy_if(read_cases(file), std::back_inserter(judged), can_be_judged);
  }
  return judged;
}

// A case that nobody judges is named here.
TEST(MatcherCases, AllAreJudgedButThese) {
  std::vector<std::string> others;
  for (const char* file : kFiles) {
    const std::vector<Case> cases = read_cases(file);
    EXPECT_GT(std::ranges::count_if(cases, can_be_judged), 0) << file;
    for (const Case& one : cases) {
      EXPECT_FALSE(one.passes.empty()) << one.title;
      if (!can_be_judged(one)) others.push_back(one.title);
    }
  }
  EXPECT_THAT(
      others,
      ::testing::ElementsAre(
          "einsum: a product of matrices, of one label each, of all labels; sums and a transpose",
          "left alone: a view whose shape the inputs' dims do not tell",
          "left alone: a scale of the wrong shape, or one that does not divide K",
          "left alone: MatMulNBits with an order of K, a CUDA layout or the wrong size",
          "com.microsoft::Attention: projection, stacked cache, mask",
          "com.microsoft::Attention without a cache",
          "left alone: GroupQueryAttention with codes that nobody describes, or a total that "
          "nobody knows",
          "left alone: GroupQueryAttention with values that its definition forbids",
          "left alone: com.microsoft, scaled or ragged",
          "left alone: values of another tensor, and a part of each head"));
}

const testing::SymbolSizes kSizes = {{"b", 2}, {"m", 3}, {"s", 2}, {"t", 5}, {"p", 3}, {"n", 4}};
const testing::SymbolSizes kOnes = {{"b", 1}, {"m", 1}, {"s", 1}, {"t", 1}, {"p", 2}, {"n", 3}};

bool is_left_alone(const Case& one) { return one.title.find("left alone") != std::string::npos; }

class Matchers : public ::testing::TestWithParam<Case> {};

TEST_P(Matchers, KeepTheResult) {
  const ir::Graph before = ir::parse(GetParam().graph);
  ir::Graph after = before;
  std::istringstream passes(GetParam().passes);
  for (std::string pass; passes >> pass;) {
    if (pass.rfind("--", 0) != 0) after = run_pass(pass, std::move(after));
  }
  EXPECT_EQ(ir::print(before) == ir::print(after), is_left_alone(GetParam()));
  testing::expect_equivalent(before, after, kSizes);
  testing::expect_equivalent(before, after, kOnes);
}

INSTANTIATE_TEST_SUITE_P(Golden, Matchers, ::testing::ValuesIn(judged_cases()));

// The whole pipeline on the same graphs.
TEST_P(Matchers, FusedGraphKeepsTheResult) {
  const ir::Graph before = ir::parse(GetParam().graph);
  const ir::Graph fused = fuse(before);
  EXPECT_EQ(ir::print(before) == ir::print(fused), is_left_alone(GetParam()));
  testing::expect_equivalent(before, fused, kSizes);
}

// Ops that the judge does not know, beside the same written with ops that it knows.
struct Pair {
  const char *name, *op, *spelled;
};

void PrintTo(const Pair& pair, std::ostream* out) { *out << pair.name; }

class Spelled : public ::testing::TestWithParam<Pair> {};

TEST_P(Spelled, GivesTheSame) {
  ir::Graph matched = ir::parse(GetParam().op);
  for (const char* pass : {"normalize", "match_scaled_dot", "match_attention"}) {
    matched = run_pass(pass, std::move(matched));
  }
  EXPECT_EQ(testing::count_ops(matched, "tenon::Attention"), 1) << ir::print(matched);
  testing::expect_equivalent(ir::parse(GetParam().spelled), matched, kSizes);
}

INSTANTIATE_TEST_SUITE_P(Attention, Spelled,
                         ::testing::Values(Pair{"PackedQueriesKeysAndValues",
                                                R"(graph main {
  input %x: f32[b,s,4,3,6]
  %y: f32[b,s,24] = com.microsoft::MultiHeadAttention@1(%x) {num_heads=4}
  output %y
})",
                                                R"(graph main {
  input %x: f32[b,s,4,3,6]
  %q1: f32[b,s,4,1,6] = tenon::Slice(%x) {starts=["0","0","0","0","0"], steps=[1,1,1,1,1]}
  %k1: f32[b,s,4,1,6] = tenon::Slice(%x) {starts=["0","0","0","1","0"], steps=[1,1,1,1,1]}
  %v1: f32[b,s,4,1,6] = tenon::Slice(%x) {starts=["0","0","0","2","0"], steps=[1,1,1,1,1]}
  %q: f32[b,s,24] = Reshape(%q1)
  %k: f32[b,s,24] = Reshape(%k1)
  %v: f32[b,s,24] = Reshape(%v1)
  %y: f32[b,s,24] = com.microsoft::MultiHeadAttention@1(%q, %k, %v) {num_heads=4}
  output %y
})"},
                                           Pair{"PackedKeysAndValues",
                                                R"(graph main {
  input %q: f32[b,s,24]
  input %x: f32[b,t,4,2,6]
  %y: f32[b,s,24] = com.microsoft::MultiHeadAttention@1(%q, %x) {num_heads=4}
  output %y
})",
                                                R"(graph main {
  input %q: f32[b,s,24]
  input %x: f32[b,t,4,2,6]
  %k1: f32[b,t,4,1,6] = tenon::Slice(%x) {starts=["0","0","0","0","0"], steps=[1,1,1,1,1]}
  %v1: f32[b,t,4,1,6] = tenon::Slice(%x) {starts=["0","0","0","1","0"], steps=[1,1,1,1,1]}
  %k: f32[b,t,24] = Reshape(%k1)
  %v: f32[b,t,24] = Reshape(%v1)
  %y: f32[b,s,24] = com.microsoft::MultiHeadAttention@1(%q, %k, %v) {num_heads=4}
  output %y
})"},
                                           Pair{"ProjectionWithMaskAndStackedCache",
                                                R"(graph main {
  input %x: f32[b,s,8]
  input %w: f32[8,72]
  input %c: f32[72]
  input %keep: i32[b,p+s]
  input %past: f32[2,b,4,p,6]
  %y: f32[b,s,24], %present: f32[2,b,4,p+s,6] = com.microsoft::Attention@1(%x, %w, %c, %keep, %past) {num_heads=4, unidirectional=1}
  output %y
  output %present
})",
                                                R"(graph main {
  input %x: f32[b,s,8]
  input %w: f32[8,72]
  input %c: f32[72]
  input %keep: i32[b,p+s]
  input %past: f32[2,b,4,p,6]
  %xw: f32[b,s,72] = MatMul@13(%x, %w)
  %all: f32[b,s,72] = Add@14(%xw, %c)
  %q: f32[b,s,24], %k: f32[b,s,24], %v: f32[b,s,24] = Split@13(%all) {axis=2}
  %pk1: f32[1,b,4,p,6], %pv1: f32[1,b,4,p,6] = Split@13(%past) {axis=0}
  %pk: f32[b,4,p,6] = Reshape(%pk1)
  %pv: f32[b,4,p,6] = Reshape(%pv1)
  %y: f32[b,s,24], %nk: f32[b,4,p+s,6], %nv: f32[b,4,p+s,6] = com.microsoft::MultiHeadAttention@1(%q, %k, %v, _, %keep, _, %pk, %pv) {num_heads=4, unidirectional=1}
  %nk1: f32[1,b,4,p+s,6] = Reshape(%nk)
  %nv1: f32[1,b,4,p+s,6] = Reshape(%nv)
  %present: f32[2,b,4,p+s,6] = Concat@13(%nk1, %nv1) {axis=0}
  output %y
  output %present
})"}));

// --- Einsum against the sum over all labels that its equation is ---

using kernels::reference::ReferenceTensor;
using Sizes = std::map<char, int64_t>;

int64_t flat_index(const std::string& labels, const Sizes& sizes, const Sizes& at) {
  int64_t flat = 0;
  for (const char label : labels) flat = flat * sizes.at(label) + at.at(label);
  return flat;
}

ReferenceTensor sum_over_labels(const std::vector<std::string>& terms, const std::string& result,
                                const Sizes& sizes, const std::vector<ReferenceTensor>& inputs) {
  std::vector<int64_t> dims;
  for (const char label : result) dims.push_back(sizes.at(label));
  ReferenceTensor y = ReferenceTensor::zeros(DType::kF32, dims);
  int64_t total = 1;
  for (const auto& [label, size] : sizes) total *= size;
  for (int64_t step = 0; step < total; ++step) {
    Sizes at;
    int64_t rest = step;
    for (const auto& [label, size] : sizes) {
      at[label] = rest % size;
      rest /= size;
    }
    double product = 1.0;
    for (size_t i = 0; i < terms.size(); ++i) {
      product *= inputs[i].number(flat_index(terms[i], sizes, at));
    }
    const int64_t place = flat_index(result, sizes, at);
    y.set(place, y.number(place) + product);
  }
  return y;
}

struct Equation {
  const char* text;
  std::vector<std::string> terms;
  std::string result;
};

void PrintTo(const Equation& equation, std::ostream* out) { *out << equation.text; }

class Einsum : public ::testing::TestWithParam<Equation> {};

TEST_P(Einsum, IsTheSumOverItsLabels) {
  const Equation& equation = GetParam();
  const Sizes all = {{'b', 2}, {'h', 3}, {'i', 4}, {'j', 5}, {'d', 6}};
  Sizes sizes;
  std::mt19937 random(7);
  std::vector<ReferenceTensor> inputs;
  std::string header, operands;
  for (size_t i = 0; i < equation.terms.size(); ++i) {
    std::vector<int64_t> dims;
    for (const char label : equation.terms[i]) {
      sizes[label] = all.at(label);
      dims.push_back(all.at(label));
    }
    inputs.push_back(testing::random_tensor(DType::kF32, dims, random));
    header += fmt::format("  input %x{}: f32[{}]\n", i, fmt::join(dims, ","));
    operands += fmt::format("{}%x{}", i == 0 ? "" : ", ", i);
  }
  std::vector<int64_t> dims;
  for (const char label : equation.result) dims.push_back(all.at(label));
  const std::string text = fmt::format(
      "graph main {{\n{}  %y: f32[{}] = Einsum@12({}) {{equation=\"{}\"}}\n  output %y\n}}\n",
      header, fmt::join(dims, ","), operands, equation.text);
  const ir::Graph graph = run_pass("normalize", ir::parse(text));
  EXPECT_EQ(testing::count_ops(graph, "Einsum"), 0) << ir::print(graph);
  testing::expect_equal(sum_over_labels(equation.terms, equation.result, sizes, inputs),
                        kernels::reference::evaluate(graph, inputs).front());
}

INSTANTIATE_TEST_SUITE_P(Equations, Einsum,
                         ::testing::Values(Equation{"bhid,bhjd->bhij", {"bhid", "bhjd"}, "bhij"},
                                           Equation{"bhij,bhjd->bihd", {"bhij", "bhjd"}, "bihd"},
                                           Equation{"ij,jd", {"ij", "jd"}, "di"},
                                           Equation{"i,j->ji", {"i", "j"}, "ji"},
                                           Equation{"bid,bid->", {"bid", "bid"}, ""},
                                           Equation{"bhid -> db", {"bhid"}, "db"},
                                           Equation{"bhid,bhjd->ihb", {"bhid", "bhjd"}, "ihb"},
                                           Equation{"bi,bi->bi", {"bi", "bi"}, "bi"}));

}  // namespace
}  // namespace tenon
