#include "graph_partitioner/partition.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include <fmt/format.h>

#include "graph_partitioner/ir/extract.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"
#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/pipeline.h"
#include "tests/graph_partitioner/random_graph.h"

namespace tenon {
namespace {

// Like the selector: the fused ops and structural ones, as long as every shape is known.
Support run_fused_ops(const ir::Graph& graph, const ir::Node& node) {
  static const std::set<std::string, std::less<>> kOps = {"tenon::ScaledDot", "tenon::Attention",
                                                          "tenon::Loop",      "Concat",
                                                          "Reshape",          "tenon::ShapeValue"};
  if (!kOps.count(node.op)) return Support::no("no candidate runs " + node.op);
  if (node.is("Reshape") && node.inputs.size() != 1) return Support::no("its target is not known");
  for (ir::ValueId output : node.outputs) {
    if (output != ir::kNoValue && !graph.value(output).shape) return Support::no("unknown shape");
  }
  return Support::yes();
}

std::vector<int> everything(const ir::Graph& graph) {
  std::vector<int> all;
  for (ir::NodeId id : graph.order()) all.push_back(graph.node(id).sources[0]);
  return all;
}

std::map<int, std::string> reasons(const Partitioning& partitioning) {
  std::map<int, std::string> result;
  for (const LeftOut& one : partitioning.left_out) result[one.source] = one.reason;
  return result;
}

// x → MatMul(DQ(w)) → Relu → Mystery → Add 1 → Mul → MatMul(DQ(w2)); node 3 is nobody's.
ir::Graph two_quantised_dots() {
  const auto zeros = [](size_t bytes) { return std::string(2 * bytes, '0'); };
  return ir::parse(R"(graph main {
  input %x: f32[batch,16]
  const %w1: f4e2m1[16,16] = hex:)" +
                   zeros(128) + R"(
  const %s1: f32[1,16] = hex:)" +
                   zeros(64) + R"(
  const %w2: f4e2m1[16,16] = hex:)" +
                   zeros(128) + R"(
  const %s2: f32[1,16] = hex:)" +
                   zeros(64) + R"(
  %d1: f32[16,16] = DequantizeLinear@23(%w1, %s1) {axis=0, block_size=16} sources=[0]
  %m1: f32[batch,16] = MatMul@13(%x, %d1) sources=[1]
  %r: f32[batch,16] = Relu@14(%m1) sources=[2]
  %u: f32[batch,16] = Mystery@1(%r) name="who" sources=[3]
  %d2: f32[16,16] = DequantizeLinear@23(%w2, %s2) {axis=0, block_size=16} sources=[4]
  %m2: f32[batch,16] = MatMul@13(%u, %d2) sources=[5]
  output %m2
})");
}

TEST(Partition, AnUnknownOpSplitsAndWeightsFollowTheirProducts) {
  const Partitioning got = partition(two_quantised_dots(), run_fused_ops, {});
  ASSERT_EQ(got.partitions.size(), 2u);
  EXPECT_EQ(got.partitions[0].sources, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(got.partitions[1].sources, (std::vector<int>{4, 5}));
  ASSERT_EQ(got.left_out.size(), 1u);
  EXPECT_EQ(got.left_out[0].source, 3);
  EXPECT_EQ(got.left_out[0].reason, "no candidate runs Mystery");
}

// A target that comes at Run leaves the node to others, whatever is declared of its result; who
// reads the result is claimed, and held to what was declared when it runs.
TEST(Partition, DeclaredShapesAreBelievedOfWhatOthersRunOnly) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n]
  input %target: i64[2]
  %a: f32[8] = Relu@14(%x) sources=[0]
  %r: f32[2,4] = Reshape@14(%a, %target) sources=[1]
  %y: f32[2,4] = Neg@13(%r) sources=[2]
  output %y
})");
  PartitionOptions options;
  options.claim_all = true;
  std::map<std::string, std::string> shapes;
  const SupportsFn supports = [&](const ir::Graph& fused, const ir::Node& node) {
    for (const ir::ValueId output : node.outputs) {
      const auto& shape = fused.value(output).shape;
      shapes[fused.value(output).name] = shape ? text(*shape) : "unknown";
    }
    return run_fused_ops(fused, node);
  };
  const Partitioning got = partition(graph, supports, options);
  ASSERT_EQ(got.partitions.size(), 2u);
  EXPECT_EQ(got.partitions[0].sources, std::vector<int>{0});
  EXPECT_EQ(got.partitions[1].sources, std::vector<int>{2});
  EXPECT_EQ(shapes["a"], "[n]");
  EXPECT_EQ(shapes["y"], "[2,4]");
  EXPECT_NE(reasons(got)[1].find("cannot be inferred"), std::string::npos) << reasons(got)[1];
}

// Sizes are made in front of a node that nobody runs and used on both sides of it.
ir::Graph sizes_before_a_cut(std::string_view declared) {
  return ir::parse(fmt::format(R"(graph main {{
  input %x: f32[batch,seq,64]
  const %heads: i64[2] = hex:02000000000000002000000000000000
  const %flat: i64[2] = hex:ffffffffffffffff4000000000000000
  %sizes: i64[2] = Shape@15(%x) {{start=0, end=2}} sources=[0]
  %target: i64[4] = Concat@13(%sizes, %heads) {{axis=0}} sources=[1]
  %a: f32[*] = Reshape@14(%x, %target) sources=[2]
  %b: f32[*] = Softmax@13(%a) sources=[3]
  %c: f32[*] = Reshape@14(%b, %flat) sources=[4]
  %d: {} = Mystery@1(%c) name="who" sources=[5]
  %e: f32[*] = Reshape@14(%d, %target) sources=[6]
  %y: f32[*] = Neg@13(%e) sources=[7]
  output %y
}})",
                               declared));
}

TEST(Partition, SizesAreKnownBehindANodeOfOthers) {
  PartitionOptions options;
  options.claim_all = true;
  const Partitioning got = partition(sizes_before_a_cut("f32[rows,64]"), run_fused_ops, options);
  ASSERT_EQ(got.left_out.size(), 1u) << got.left_out.back().reason;
  EXPECT_EQ(got.left_out[0].source, 5);
  ASSERT_EQ(got.partitions.size(), 2u);
  const Partition& behind = got.partitions[1];
  EXPECT_EQ(behind.sources, (std::vector<int>{6, 7}));
  ASSERT_EQ(behind.inputs.size(), 2u);
  EXPECT_EQ(behind.inputs[0].name, "d");
  EXPECT_EQ(text(*behind.inputs[0].shape), "[rows,64]");
  EXPECT_EQ(behind.inputs[1].name, "target");
  EXPECT_EQ(text(*behind.inputs[1].elements), "[batch,seq,2,32]");
}

// The same of a node that has a rule, as the model declares nothing.
TEST(Partition, AnOpWithoutAKernelHasASizeAllTheSame) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,c,h,w]
  input %rois: f32[p,4]
  input %owners: i64[p]
  %g: f32[*] = RoiAlign@16(%x, %rois, %owners) {output_height=3, output_width=2} sources=[0]
  %r: f32[*] = RandomNormalLike@1(%g) sources=[1]
  %y: f32[*] = Neg@13(%r) sources=[2]
  output %y
})");
  PartitionOptions options;
  options.claim_all = true;
  const Partitioning got = partition(graph, run_fused_ops, options);
  ASSERT_EQ(got.partitions.size(), 1u);
  EXPECT_EQ(got.partitions[0].sources, std::vector<int>{2});
  EXPECT_EQ(text(*got.partitions[0].inputs[0].shape), "[p,c,3,2]");
}

// An attribute that the table of known ops lacks may change what the rule says.
TEST(Partition, ARuleIsNotAskedOfAnOpThatIsNotKnown) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,4]
  %t: f32[*] = Transpose@99(%x) {perm=[1,0], brand_new=1} sources=[0]
  %y: f32[*] = Neg@13(%t) sources=[1]
  output %y
})");
  PartitionOptions options;
  options.claim_all = true;
  EXPECT_TRUE(partition(graph, run_fused_ops, options).partitions.empty());
}

TEST(Partition, WhatFollowsFromAnUnknownRankNamesTheNodeThatStartedIt) {
  PartitionOptions options;
  options.claim_all = true;
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n]
  %m: f32[*] = Mystery@1(%x) name="who" sources=[0]
  %a: f32[*] = Relu@14(%m) sources=[1]
  %b: f32[*] = Tanh@13(%a) sources=[2]
  %c: f32[*] = Exp@13(%b) sources=[3]
  %d: f32[n] = Neg@13(%c) sources=[4]
  output %d
})");
  const auto left = reasons(partition(graph, run_fused_ops, options));
  EXPECT_EQ(left.at(0), "no candidate runs Mystery");
  for (const int behind : {1, 2, 3, 4}) {
    EXPECT_EQ(left.at(behind),
              "because 'who' (Mystery) before it is left to others: no candidate runs Mystery");
  }
}

// What a Slice takes was computed from the shape of something behind that node.
TEST(Partition, SizesThatFollowFromAnUnknownRankNameTheNodeToo) {
  PartitionOptions options;
  options.claim_all = true;
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n]
  const %zero: i64[1] = hex:0000000000000000
  %m: f32[*] = Mystery@1(%x) name="who" sources=[0]
  %s: i64[*] = Shape@15(%m) {end=1} sources=[1]
  %h: i64[*] = Add@14(%s, %zero) sources=[2]
  %y: f32[*] = Slice@13(%x, %zero, %h) sources=[3]
  output %y
})");
  EXPECT_EQ(reasons(partition(graph, run_fused_ops, options)).at(3),
            "because 'who' (Mystery) before it is left to others: no candidate runs Mystery");
}

TEST(Partition, SizesThatContradictEachOtherSaySo) {
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[n,3]
  input %w: f32[4,5]
  %y: f32[n,5] = MatMul@13(%x, %w) sources=[0]
  output %y
})");
  const auto left = reasons(partition(graph, run_fused_ops, {}));
  EXPECT_EQ(left.at(0), "its sizes contradict each other: equal(3,4) does not hold");
}

TEST(Partition, ExcludedNodesSayWhichOption) {
  PartitionOptions options;
  options.exclude_ops = {"Relu"};
  options.exclude_nodes = {"who"};
  const auto why = reasons(partition(two_quantised_dots(), run_fused_ops, options));
  EXPECT_EQ(why.at(2), "excluded by the option exclude_ops (Relu)");
  EXPECT_EQ(why.at(3), "excluded by the option exclude_nodes");
  EXPECT_EQ(why.size(), 2u);
}

TEST(Partition, AnExcludedDequantisationLeavesAPlainProduct) {
  PartitionOptions options;
  options.exclude_ops = {"DequantizeLinear"};
  const Partitioning got = partition(two_quantised_dots(), run_fused_ops, options);
  ASSERT_EQ(got.partitions.size(), 2u);
  EXPECT_EQ(got.partitions[0].sources, (std::vector<int>{1, 2}));
}

TEST(Partition, WhatGainsNothingIsLeftUnlessAllIsClaimed) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,16]
    %t: f32[16,batch] = Transpose@13(%x) {perm=[1,0]} sources=[0]
    %y: f32[16,batch] = Relu@14(%t) sources=[1]
    output %y
  })");
  const Partitioning gainful = partition(graph, run_fused_ops, {});
  EXPECT_TRUE(gainful.partitions.empty());
  ASSERT_EQ(gainful.left_out.size(), 2u);
  EXPECT_NE(gainful.left_out[0].reason.find("gain nothing"), std::string::npos);
  PartitionOptions all;
  all.claim_all = true;
  const Partitioning claimed = partition(graph, run_fused_ops, all);
  ASSERT_EQ(claimed.partitions.size(), 1u);
  EXPECT_EQ(claimed.partitions[0].sources, (std::vector<int>{0, 1}));
}

// The Concat has its own place between two ops that are left: it reads one tensor of the CPU and
// three of the GPU.
TEST(Partition, OnAGpuWhatSparesCopiesIsClaimedWithoutGainOfItsOwn) {
  const auto left_of = [](const std::string& parts, const std::string& rows) {
    const ir::Graph graph = ir::parse(
        "graph main {\n"
        R"(
      input %x: f32[64,64]
      input %a: f32[64,64]
      %p: f32[64,64] = MatMul@13(%x, %a) sources=[0]
      %q: f32[64,64] = MatMul@13(%p, %a) sources=[1]
      %r: f32[64,64] = MatMul@13(%q, %a) sources=[2]
      %s: f32[64,64] = Sin@7(%p) sources=[3]
      %k: f32[)" +
        rows + ",64] = Concat@13(" + parts + ") {axis=0} sources=[4]\n %z: f32[" + rows +
        R"(,64] = Sin@7(%k) sources=[5]
      %y: f32[)" +
        rows + R"(,64] = MatMul@13(%z, %a) sources=[6]
      output %y
      output %r
    })");
    PartitionOptions without_sin;
    without_sin.exclude_ops = {"Sin"};
    std::set<int> left;
    for (const LeftOut& each : partition(graph, run_fused_ops, without_sin).left_out) {
      left.insert(each.source);
    }
    return left;
  };
  EXPECT_EQ(left_of("%s, %p, %q, %r", "256"), (std::set<int>{3, 5}));
  EXPECT_EQ(left_of("%s, %p", "128"), (std::set<int>{3, 4, 5})) << "two copies either way";
}

// A product and four pointwise ops behind it. `weight` declares %w: f32[256,1024].
ir::Graph product_and_chain(const std::string& rows, const std::string& weight) {
  const std::string shape = "f32[" + rows + ",1024]";
  return ir::parse("graph main {\n input %x: f32[" + rows + ",256]\n " + weight +
                   "\n %m: " + shape + " = MatMul@13(%x, %w) sources=[0]\n %a: " + shape +
                   " = Mul@14(%m, %m) sources=[1]\n %b: " + shape +
                   " = Add@14(%a, %m) sources=[2]\n %c: " + shape +
                   " = Abs@13(%b) sources=[3]\n %y: " + shape +
                   " = Mul@14(%c, %a) sources=[4]\n output %y\n}");
}

const std::string kWeightAtRun = "input %w: f32[256,1024]";

std::string constant_weight() {
  return "const %w: f32[256,1024] = hex:" + std::string(2 * 4 * 256 * 1024, '0');
}

PartitionOptions on_host() {
  PartitionOptions options;
  options.on_host = true;
  return options;
}

TEST(Partition, AProductOfWeightsAtRunIsLeftOnTheHostAndTheRestIsNot) {
  for (const std::string rows : {"1", "31", "batch"}) {
    const Partitioning got =
        partition(product_and_chain(rows, kWeightAtRun), run_fused_ops, on_host());
    ASSERT_EQ(got.partitions.size(), 1u) << rows;
    EXPECT_EQ(got.partitions[0].sources, (std::vector<int>{1, 2, 3, 4})) << rows;
    ASSERT_EQ(got.left_out.size(), 1u) << rows;
    EXPECT_NE(got.left_out[0].reason.find("its weights 'w' arrive at Run"), std::string::npos)
        << got.left_out[0].reason;
  }
}

TEST(Partition, AProductOfWeightsAtRunIsClaimedWhereItCostsNothing) {
  const auto claimed = [](const std::string& rows, const PartitionOptions& options) {
    const Partitioning got =
        partition(product_and_chain(rows, kWeightAtRun), run_fused_ops, options);
    return got.left_out.empty();
  };
  EXPECT_TRUE(claimed("32", on_host()));
  EXPECT_TRUE(claimed("1", {})) << "on a GPU";
  PartitionOptions all = on_host();
  all.claim_all = true;
  EXPECT_TRUE(claimed("1", all));
}

// Angles of a rotary embedding: an outer product, of sizes that only a Run knows.
TEST(Partition, ProductsOfActivationsAreNoneOfWeightsAtRun) {
  for (const std::string size : {"seq", "64"}) {
    const std::string shape = "f32[8," + size + "]";
    const ir::Graph graph = ir::parse(
        "graph main {\n input %x: f32[8,1]\n input %w: f32[1," + size + "]\n %m: " + shape +
        " = MatMul@13(%x, %w) sources=[0]\n %c: " + shape +
        " = Cos@7(%m) sources=[1]\n %s: " + shape + " = Sin@7(%m) sources=[2]\n %y: " + shape +
        " = Mul@14(%c, %s) sources=[3]\n output %y\n}");
    EXPECT_TRUE(partition(graph, run_fused_ops, on_host()).left_out.empty()) << size;
  }
}

// Left out, it would take what its readers know of their operands with it.
TEST(Partition, AProductOfUndeclaredShapeStaysWithItsReaders) {
  ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[1,64]
    input %w: f32[64,128]
    %m: f32[*] = MatMul@13(%x, %w) sources=[0]
    %a: f32[1,128] = Sigmoid@13(%m) sources=[1]
    %b: f32[1,128] = Mul@14(%a, %m) sources=[2]
    %c: f32[1,128] = Tanh@13(%b) sources=[3]
    %y: f32[1,128] = Mul@14(%c, %a) sources=[4]
    output %y
  })");
  EXPECT_TRUE(partition(graph, run_fused_ops, on_host()).left_out.empty());
}

TEST(Partition, ManyWeightsAtRunAreLeftThoughNobodyDeclaresTheResult) {
  ir::Graph graph = product_and_chain("1", kWeightAtRun);
  graph.value(graph.find("m")).shape.reset();
  const auto left = reasons(partition(graph, run_fused_ops, on_host()));
  ASSERT_TRUE(left.contains(0));
  EXPECT_NE(left.at(0).find("its weights 'w' arrive at Run"), std::string::npos) << left.at(0);
}

// Stock kernels do not negate bfloat16, and here it runs behind a product of ours only.
TEST(Partition, AProductIsNotLeftWhereThatStrandsWhatOnlyWeCanRun) {
  const SupportsFn no_loops = [](const ir::Graph& fused, const ir::Node& node) {
    if (node.is(ir::kLoop)) return Support::no("its operand is made elsewhere");
    return run_fused_ops(fused, node);
  };
  const auto count_left = [&](const std::string& type, int64_t to) {
    const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[1,64]
    input %w: f32[64,1024]
    %m: f32[1,1024] = MatMul@13(%x, %w) sources=[0]
    %b: )" + type + R"([1,1024] = Cast@13(%m) {to=)" +
                                      std::to_string(to) + R"(} sources=[1]
    %y: )" + type + R"([1,1024] = Neg@13(%b) sources=[2]
    output %y
  })");
    return partition(graph, no_loops, on_host()).left_out.size();
  };
  constexpr int64_t kFloat16 = 10, kBfloat16 = 16;
  EXPECT_EQ(count_left("bf16", kBfloat16), 0u);
  EXPECT_EQ(count_left("f16", kFloat16), 3u);
}

// What a static quantiser writes: MatMul between two DequantizeLinear and a QuantizeLinear.
ir::Graph integer_product() {
  return ir::parse(R"(graph main {
    input %x: u8[4,32]
    const %w: i8[32,16] = hex:)" +
                   std::string(2 * 32 * 16, '0') + R"(
    const %s: f32[] = hex:0000003f
    const %xz: u8[] = hex:80
    const %wz: i8[] = hex:00
    %a: f32[4,32] = DequantizeLinear@13(%x, %s, %xz) sources=[0]
    %b: f32[32,16] = DequantizeLinear@13(%w, %s, %wz) sources=[1]
    %m: f32[4,16] = MatMul@13(%a, %b) sources=[2]
    %y: u8[4,16] = QuantizeLinear@13(%m, %s, %xz) sources=[3]
    output %y
  })");
}

TEST(Partition, ProductsOfIntegersAreLeftToStockKernelsOnTheHost) {
  const auto left = reasons(partition(integer_product(), run_fused_ops, on_host()));
  ASSERT_EQ(left.size(), 4u);
  EXPECT_NE(left.at(2).find("DequantizeLinear, MatMul and QuantizeLinear as one"),
            std::string::npos)
      << left.at(2);
  PartitionOptions all = on_host();
  all.claim_all = true;
  EXPECT_TRUE(partition(integer_product(), run_fused_ops, all).left_out.empty());
  EXPECT_TRUE(partition(integer_product(), run_fused_ops, {}).left_out.empty()) << "on a GPU";
}

// The convolution is nobody's of ours, and with it goes what quantises for it: no part is claimed,
// although the sum behind it has four ops of arithmetic around it.
TEST(Partition, WhatQuantisesForANodeOfOthersIsLeftWithItOnTheHost) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: u8[1,8,4,4]
    const %w: i8[8,8,1,1] = hex:)" + std::string(2 * 64, '0') +
                                    R"(
    const %s: f32[] = hex:0000003f
    const %z: u8[] = hex:80
    const %wz: i8[] = hex:00
    %a: f32[1,8,4,4] = DequantizeLinear@13(%x, %s, %z) sources=[0]
    %f: f32[8,8,1,1] = DequantizeLinear@13(%w, %s, %wz) sources=[1]
    %c: f32[1,8,4,4] = Mystery@1(%a, %f) sources=[2]
    %q: u8[1,8,4,4] = QuantizeLinear@13(%c, %s, %z) sources=[3]
    %d: f32[1,8,4,4] = DequantizeLinear@13(%q, %s, %z) sources=[4]
    %e: f32[1,8,4,4] = DequantizeLinear@13(%x, %s, %z) sources=[5]
    %t: f32[1,8,4,4] = Add@14(%d, %e) sources=[6]
    %y: u8[1,8,4,4] = QuantizeLinear@13(%t, %s, %z) sources=[7]
    output %y
  })");
  const Partitioning got = partition(graph, run_fused_ops, on_host());
  EXPECT_TRUE(got.partitions.empty());
  const auto left = reasons(got);
  for (const int source : {0, 1, 3}) {
    EXPECT_NE(left.at(source).find("it quantises for Mystery, which stays with others"),
              std::string::npos)
        << left.at(source);
  }
  EXPECT_NE(left.at(6).find("as one QLinearAdd"), std::string::npos) << left.at(6);
  PartitionOptions all = on_host();
  all.claim_all = true;
  EXPECT_EQ(reasons(partition(graph, run_fused_ops, all)).size(), 1u) << "but for Mystery";
}

// So deep that the chain behind it saves less than the product costs; the chain gains by itself.
TEST(Partition, ADeepPlainProductIsLeftOnTheHostAndWhatIsBehindItIsNot) {
  ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,2048]
    const %w: f32[2048,1024] = hex:)" +
                              std::string(2 * 4 * 2048 * 1024, '0') +
                              R"(
    %m: f32[batch,1024] = MatMul@13(%x, %w) sources=[0]
    %a: f32[batch,1024] = Mul@14(%m, %m) sources=[1]
    %b: f32[batch,1024] = Add@14(%a, %m) sources=[2]
    %c: f32[batch,1024] = Abs@13(%b) sources=[3]
    %y: f32[batch,1024] = Mul@14(%c, %a) sources=[4]
    output %y
  })");
  const Partitioning got = partition(graph, run_fused_ops, on_host());
  ASSERT_EQ(got.partitions.size(), 1u);
  EXPECT_EQ(got.partitions[0].sources, (std::vector<int>{1, 2, 3, 4}));
  const auto left = reasons(got);
  EXPECT_NE(left.at(0).find("of stock kernels' time"), std::string::npos) << left.at(0);
  EXPECT_TRUE(partition(graph, run_fused_ops, {}).left_out.empty()) << "on a GPU";
}

TEST(Partition, PlainWeightsThatTheModelHoldsAreKeptOnTheHost) {
  for (const std::string rows : {"1", "4", "batch"}) {
    const ir::Graph graph = product_and_chain(rows, constant_weight());
    EXPECT_TRUE(reasons(partition(graph, run_fused_ops, on_host())).empty()) << rows;
  }
}

// Weights with scales are fewer bytes to read, however many they are.
TEST(Partition, QuantisedWeightsGainWithOneRowToo) {
  const auto zeros = [](size_t bytes) { return std::string(2 * bytes, '0'); };
  const ir::Graph graph = ir::parse(R"(graph main {
  input %x: f32[1,512]
  const %w: i8[512,512] = hex:)" + zeros(512 * 512) +
                                    R"(
  const %s: f32[512] = hex:)" + zeros(4 * 512) +
                                    R"(
  %d: f32[512,512] = DequantizeLinear@21(%w, %s) {axis=1} sources=[0]
  %y: f32[1,512] = MatMul@13(%x, %d) sources=[1]
  output %y
})");
  EXPECT_TRUE(partition(graph, run_fused_ops, on_host()).left_out.empty());
}

TEST(Partition, WhatOnlyWeCanRunIsAlwaysKept) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f8e4m3fn[batch,16]
    %y: f32[batch,16] = Cast@19(%x) {to=1} sources=[0]
    output %y
  })");
  EXPECT_EQ(partition(graph, run_fused_ops, {}).partitions.size(), 1u);
}

TEST(Partition, LongPointwiseChainsGain) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,16]
    %a: f32[batch,16] = Exp@13(%x) sources=[0]
    %b: f32[batch,16] = Add@14(%a, %x) sources=[1]
    %c: f32[batch,16] = Sqrt@13(%b) sources=[2]
    %d: f32[batch,16] = Mul@14(%c, %x) sources=[3]
    output %d
  })");
  EXPECT_EQ(partition(graph, run_fused_ops, {}).partitions.size(), 1u);
}

TEST(Partition, NoCutOnASmallFloatEdge) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,16]
    %a: f8e4m3fn[batch,16] = Cast@19(%x) {to=17} sources=[0]
    %b: f8e4m3fn[batch,16] = Mystery@1(%a) sources=[1]
    %c: f32[batch,16] = Cast@19(%b) {to=1} sources=[2]
    output %c
  })");
  PartitionOptions all;
  all.claim_all = true;
  const Partitioning got = partition(graph, run_fused_ops, all);
  EXPECT_TRUE(got.partitions.empty());
  const auto why = reasons(got);
  EXPECT_EQ(why.at(1), "no candidate runs Mystery");
  EXPECT_NE(why.at(0).find("f8e4m3fn"), std::string::npos) << why.at(0);
  EXPECT_NE(why.at(2).find("cannot be an input or output"), std::string::npos) << why.at(2);
}

TEST(Partition, ShapesThatALeftOutNodeReadsToo) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,seq,8]
    const %zero: i64[1] = hex:0000000000000000
    const %tail: i64[1] = hex:ffffffffffffffff
    %s: i64[3] = Shape@13(%x) sources=[0]
    %b: i64[1] = Gather@13(%s, %zero) {axis=0} sources=[1]
    %t: i64[2] = Concat@13(%b, %tail) {axis=0} sources=[2]
    %y: f32[*] = Reshape@13(%x, %t) sources=[3]
    %u: f32[*] = Mystery@1(%y, %t) sources=[4]
    output %u
  })");
  PartitionOptions all;
  all.claim_all = true;
  const Partitioning got = partition(graph, run_fused_ops, all);
  ASSERT_EQ(got.partitions.size(), 1u);
  EXPECT_EQ(got.partitions[0].sources, (std::vector<int>{0, 1, 2, 3}));
}

// The Reshape to the shape that is there dissolves into what nobody runs.
TEST(Partition, AViewIsNotRefusedForTheOpThatItReads) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: f32[batch,8]
    %u: f32[batch,8] = Mystery@1(%x) sources=[0]
    %s: i64[2] = Shape@13(%u) sources=[1]
    %y: f32[batch,8] = Reshape@13(%u, %s) sources=[2]
    output %y
  })");
  PartitionOptions all;
  all.claim_all = true;
  const auto why = reasons(partition(graph, run_fused_ops, all));
  ASSERT_EQ(why.size(), 1u);
  EXPECT_EQ(why.at(0), "no candidate runs Mystery");
}

TEST(Partition, StringsAndSequencesAreLeftOut) {
  const ir::Graph graph = ir::parse(R"(graph main {
    input %x: string[2]
    %y: string[2] = Identity@16(%x) sources=[0]
    output %y
  })");
  const auto why = reasons(partition(graph, run_fused_ops, {}));
  EXPECT_NE(why.at(0).find("strings"), std::string::npos);
}

TEST(Partition, AThrowingAnswerIsAReason) {
  const SupportsFn throws = [](const ir::Graph&, const ir::Node&) -> Support {
    throw std::runtime_error("boom");
  };
  const auto why = reasons(partition(two_quantised_dots(), throws, {}));
  EXPECT_EQ(why.size(), 6u);
  EXPECT_NE(why.at(3).find("boom"), std::string::npos);
}

// Pointwise graphs with ops that nobody runs strewn in: whatever comes out covers every node once,
// and every partition runs when it is cut out.
ir::Graph random_pointwise(std::mt19937& random, int nodes) {
  constexpr const char* kUnary[] = {"Relu", "Exp", "Neg", "Mystery"};
  ir::Graph graph;
  const auto value = [](const std::string& name) {
    ir::Value made;
    made.name = name;
    made.dtype = DType::kF32;
    made.shape = Shape{Dim::symbol("batch"), 8};
    return made;
  };
  std::vector<ir::ValueId> values{graph.add_input(value("x")), graph.add_input(value("y"))};
  for (int i = 0; i < nodes; ++i) {
    ir::Node node;
    const bool binary = testing::pick(random, 0, 1) != 0;
    node.op = binary ? "Add" : kUnary[testing::pick(random, 0, 3)];
    node.since_version = 14;
    node.sources = {i};
    for (int k = 0; k < (binary ? 2 : 1); ++k) {
      node.inputs.push_back(
          values[testing::pick(random, 0, static_cast<int64_t>(values.size()) - 1)]);
    }
    node.outputs = {graph.add_value(value("v"))};
    values.push_back(node.outputs[0]);
    graph.add_node(std::move(node));
  }
  graph.add_output(values.back());
  return graph;
}

TEST(Partition, RandomGraphsAreCoveredOnceAndEveryPartRuns) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const ir::Graph graph = random_pointwise(random, 24);
    PartitionOptions all;
    all.claim_all = true;
    const Partitioning got = partition(graph, run_fused_ops, all);
    std::multiset<int> covered;
    for (const LeftOut& one : got.left_out) {
      covered.insert(one.source);
      EXPECT_FALSE(one.reason.empty());
    }
    for (const Partition& part : got.partitions) {
      covered.insert(part.sources.begin(), part.sources.end());
      ir::Graph cut = ir::extract(graph, part.sources);
      ir::tell_inputs(cut, part.inputs);
      const ir::Graph fused = fuse(std::move(cut));
      for (ir::NodeId id : fused.order()) {
        EXPECT_TRUE(run_fused_ops(fused, fused.node(id)).ok) << ir::print(fused);
      }
    }
    const std::vector<int> all_nodes = everything(graph);
    EXPECT_EQ(covered, std::multiset<int>(all_nodes.begin(), all_nodes.end()));
    // Dead nodes aside, the only ones left out are those that nobody runs.
    for (const LeftOut& one : got.left_out) {
      EXPECT_EQ(graph.node(graph.order()[one.source]).op, "Mystery") << one.reason;
    }
  }
}

}  // namespace
}  // namespace tenon
