#include "kernels/selector.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "graph_partitioner/ir/channels_last.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/known_ops.h"
#include "graph_partitioner/ir/paged_attention.h"
#include "graph_partitioner/ir/refusal.h"
#include "kernels/collectives.h"
#include "kernels/cudnn/candidates.h"
#include "kernels/cudnn_attention.h"
#include "kernels/cudnn_scaled_dot.h"
#include "kernels/llvm/attention.h"
#include "kernels/llvm/attention/paged.h"
#include "kernels/llvm/concat.h"
#include "kernels/llvm/cum_sum.h"
#include "kernels/llvm/gather.h"
#include "kernels/llvm/loop.h"
#include "kernels/llvm/scaled_dot.h"
#include "kernels/llvm/scatter.h"
#include "kernels/llvm/tensor_scatter.h"
#include "kernels/node_text.h"
#include "kernels/offers.h"
#include "kernels/planning/roofline.h"
#include "kernels/planning/symbol_binding.h"
#include "kernels/planning/views.h"
#include "kernels/tuned_choice.h"

namespace tenon::kernels {
namespace {

struct Table {
  std::string_view op;
  std::span<const Candidate> candidates;  // best first
};

// Rows are read at the call, never by static constructors.
std::array<Table, 2> host_tables() {
  return {{
      {ir::kAttention, attention_candidates()},
      {ir::kScaledDot, scaled_dot_candidates()},
  }};
}

std::array<Table, 9> gpu_tables() {
  return {{
      {"AveragePool", cudnn_pooling_candidates()},
      {"Conv", cudnn_convolution_candidates()},
      {"ConvTranspose", cudnn_convolution_candidates()},
      {"MaxPool", cudnn_pooling_candidates()},
      {"com.microsoft::FusedConv", cudnn_convolution_candidates()},
      {ir::kChannelsLastConv, cudnn_convolution_candidates()},
      {ir::kMergedDots, merged_dots_candidates_with_cudnn()},
      {ir::kAttention, attention_candidates_with_cudnn()},
      {ir::kScaledDot, scaled_dot_candidates_with_cudnn()},
  }};
}

// These ask the settings themselves: only the order of their loops differs.
std::array<Table, 15> shared_tables() {
  return {{
      {ir::kLoop, loop_candidates()},
      {ir::kPagedAttention, paged_attention_candidates()},
      {ir::kAllGather, collective_candidates()},
      {ir::kAllReduce, collective_candidates()},
      {ir::kAllToAll, collective_candidates()},
      {ir::kBroadcast, collective_candidates()},
      {ir::kPermute, collective_candidates()},
      {ir::kReduceScatter, collective_candidates()},
      {"Concat", concat_candidates()},
      {"CumSum", cum_sum_candidates()},
      {"GatherElements", gather_elements_candidates()},
      {"GatherND", gather_nd_candidates()},
      {"ScatterElements", scatter_elements_candidates()},
      {"ScatterND", scatter_nd_candidates()},
      {"TensorScatter", tensor_scatter_candidates()},
  }};
}

// What the operators that `node` stands for ask of sizes must be a question that a Run can answer.
Support requirements_can_be_checked(const ir::Graph& graph, const ir::Node& node,
                                    const SymbolBinding& binding) {
  for (const ir::Requirement& required : graph.requirements()) {
    const bool is_own = std::ranges::any_of(required.sources, [&](int source) {
      return std::ranges::binary_search(node.sources, source);
    });
    if (!is_own) continue;
    const auto refused = [&](const std::string& why) {
      return Support::no(fmt::format("{}({},{}) of '{}': {}", ir::relation_name(required.relation),
                                     required.left.text(), required.right.text(), required.node,
                                     why));
    };
    if (ir::decide(required.left, required.relation, required.right) == false) {
      return refused("these sizes never fit together");
    }
    for (const Dim* side : {&required.left, &required.right}) {
      if (Support answer = binding.covers(*side); !answer) return refused(answer.reason);
    }
  }
  return Support::yes();
}

// Every size must follow from the inputs, or no Run could tell how much to compute.
Support has_known_sizes(const ir::Graph& graph, const ir::Node& node) {
  const SymbolBinding binding(graph);
  for (const auto* values : {&node.inputs, &node.outputs}) {
    for (ir::ValueId id : *values) {
      if (id == ir::kNoValue) continue;
      const ir::Value& value = graph.value(id);
      if (!value.shape) {
        return Support::no(fmt::format("the rank of '{}' is not known before Run", value.name));
      }
      if (Support answer = binding.covers(*value.shape); !answer) {
        return Support::no(
            fmt::format("shape {} of '{}': {}", text(*value.shape), value.name, answer.reason));
      }
    }
  }
  return requirements_can_be_checked(graph, node, binding);
}

// Ops that passes read for the sizes of their results alone: no kernel takes them in any form.
constexpr auto kSizesOnly = std::to_array<std::string_view>({
    "AffineGrid",
    "Bernoulli",
    "BlackmanWindow",
    "CenterCropPad",
    "Col2Im",
    "ConvInteger",
    "DeformConv",
    "Det",
    "GRU",
    "GlobalLpPool",
    "HammingWindow",
    "HannWindow",
    "LRN",
    "LSTM",
    "LpPool",
    "MaxRoiPool",
    "MaxUnpool",
    "MelWeightMatrix",
    "Multinomial",
    "NegativeLogLikelihoodLoss",
    "QLinearConv",
    "QLinearMatMul",
    "RNN",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "ReverseSequence",
    "RoiAlign",
    "SoftmaxCrossEntropyLoss",
    "TopK",
    "com.microsoft::BiasAdd",
    "com.microsoft::BiasSplitGelu",
    "com.microsoft::ComplexMul",
    "com.microsoft::DynamicQuantizeMatMul",
    "com.microsoft::EmbedLayerNormalization",
    "com.microsoft::FusedGemm",
    "com.microsoft::GroupNorm",
    "com.microsoft::Inverse",
    "com.microsoft::MatMulBnb4",
    "com.microsoft::MatMulIntegerToFloat",
    "com.microsoft::MoE",
    "com.microsoft::QLinearAdd",
    "com.microsoft::QLinearConcat",
    "com.microsoft::QLinearGlobalAveragePool",
    "com.microsoft::QLinearLeakyRelu",
    "com.microsoft::QLinearMul",
    "com.microsoft::QLinearSigmoid",
    "com.microsoft::QLinearSoftmax",
    "com.microsoft::QLinearWhere",
    "com.microsoft::QMoE",
    "com.microsoft::SkipGroupNorm",
});

// Ops that only a library runs, which has no kernels for the host.
constexpr auto kOnGpuOnly = std::to_array<std::string_view>(
    {"AveragePool", "Conv", "ConvTranspose", "MaxPool", "com.microsoft::FusedConv"});

// Kernels take what passes make of an op. Why this one still has its own name, and no table.
Support why_under_its_own_name(const ir::Graph& graph, const ir::Node& node) {
  if (node.has(ir::kRefused)) return Support::no(node.text(ir::kRefused, ""));
  const auto listed = ir::known_ops();
  const std::string_view op = node.op;
  if (std::ranges::find(listed, op, &ir::KnownOp::op) == listed.end() ||
      std::ranges::find(kSizesOnly, op) != kSizesOnly.end()) {
    return Support::no("no kernel for this op");
  }
  if (std::ranges::find(kOnGpuOnly, op) != kOnGpuOnly.end()) {
    return Support::no("no kernel for this op on the CPU");
  }
  if (Support sizes = has_known_sizes(graph, node); !sizes) return sizes;
  return Support::no(fmt::format("no kernel for these attributes, types or shapes: {}{}",
                                 problem_text(graph, node), attributes_text(node)));
}

// A forced candidate is alone, or has the rows that it was forced for to itself.
Planned restrict_rows(const Candidate& candidate, Plan plan, const TuningOverrides& tuning) {
  if (tuning.candidate.empty()) return plan;
  const bool is_forced = candidate.name == tuning.candidate;
  if (tuning.candidate_rows.is_all()) {
    if (!is_forced) return Planned::no("another candidate was forced");
    // Where rows are known there are no others that somebody else would have to take.
    const bool takes_them =
        plan.rows.is_constant() && plan.takes.covers({plan.rows.value(), plan.rows.value()});
    if (takes_them) plan.takes = {};
    return plan;
  }
  if (is_forced) plan.takes = tuning.candidate_rows;
  return plan;
}

}  // namespace

std::string Choice::chosen() const {
  if (parts.size() == 1) return std::string(parts[0].candidate);
  std::string joined;
  for (const PartChoice& part : parts) {
    joined += fmt::format("{}{} ({})", joined.empty() ? "" : ", ", part.candidate,
                          part.rows.text("rows"));
  }
  return joined;
}

std::string Choice::reason() const {
  std::string joined;
  for (const Verdict& verdict : verdicts) {
    if (verdict.support) continue;
    if (!joined.empty()) joined += "; ";
    if (!verdict.candidate.empty()) joined += fmt::format("{}: ", verdict.candidate);
    joined += verdict.support.reason;
  }
  return joined;
}

double Choice::microseconds() const {
  if (parts.empty() || parts[0].plan.ranges.empty()) return 0;
  const std::vector<PlannedKernel>& kernels = parts[0].plan.ranges[0].kernels;
  return kernels.empty() ? 0 : kernels[0].microseconds;
}

std::vector<RangePlan> Offer::ranges() const {
  std::vector<RangePlan> reached;
  for (RangePlan range : plan.ranges) {
    range.rows = range.rows.common_with(plan.takes);
    if (plan.rows.is_constant()) {
      range.rows = range.rows.common_with({plan.rows.value(), plan.rows.value()});
    }
    if (!range.rows.is_empty() && !range.kernels.empty()) reached.push_back(std::move(range));
  }
  return reached;
}

std::span<const Candidate> candidates(std::string_view op, const Settings& settings) {
  std::span<const Candidate> found;
  const auto search = [&](const auto& tables) {
    for (const Table& table : tables) {
      if (table.op == op) found = table.candidates;
    }
  };
  search(shared_tables());
  settings.gpu ? search(gpu_tables()) : search(host_tables());
  return found;
}

std::vector<PartChoice> deal_rows(const std::vector<Offer>& plans) {
  std::vector<PartChoice> parts;
  std::vector<RowRange> open = {RowRange{}};
  for (const auto& [candidate, plan] : plans) {
    std::vector<RowRange> left;
    for (const RowRange& rows : open) {
      const RowRange taken = rows.common_with(plan.takes);
      if (taken.is_empty()) {
        left.push_back(rows);
        continue;
      }
      parts.push_back({candidate->name, taken, plan});
      if (rows.first < taken.first) left.push_back({rows.first, taken.first - 1});
      if (taken.last < rows.last) left.push_back({taken.last + 1, rows.last});
    }
    open = std::move(left);
  }
  if (!open.empty()) return {};
  std::ranges::sort(parts, {}, [](const PartChoice& part) { return part.rows.first; });
  return parts;
}

Offers ask(const ir::Graph& graph, const ir::Node& node, const Settings& settings, Asked asked) {
  Offers offers;
  const auto table = candidates(node.op, settings);
  if (table.empty()) {
    offers.verdicts.push_back({"", why_under_its_own_name(graph, node)});
    return offers;
  }
  const Support sizes = has_known_sizes(graph, node);
  for (const Candidate& candidate : table) {
    Planned planned = sizes ? candidate.plan(graph, node, settings) : Planned(sizes);
    if (planned.plan) add_roofline(graph, node, settings, *planned.plan);
    if (planned.plan) planned = restrict_rows(candidate, std::move(*planned.plan), settings.tuning);
    offers.verdicts.push_back({candidate.name, planned.support});
    if (!planned.plan) continue;
    const bool takes_all = planned.plan->takes.is_all();
    offers.plans.push_back({&candidate, std::move(*planned.plan)});
    if (takes_all && asked == Asked::kUntilOneRuns) break;
  }
  std::ranges::stable_partition(offers.plans, [&](const Offer& offer) {
    return offer.candidate->name == settings.tuning.candidate;
  });
  return offers;
}

Choice select(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (settings.records && settings.tuning.candidate.empty()) {
    return choose_by_records(graph, node, settings);
  }
  Offers offers = ask(graph, node, settings);
  return {.parts = deal_rows(offers.plans), .verdicts = std::move(offers.verdicts)};
}

Support supports(const ir::Graph& graph, const ir::Node& node, const Settings& settings) {
  if (is_view(node) || is_shape_value(node)) return has_known_sizes(graph, node);
  Offers offers = ask(graph, node, settings, Asked::kUntilOneRuns);
  const Choice choice{.parts = deal_rows(offers.plans), .verdicts = std::move(offers.verdicts)};
  return choice.ok() ? Support::yes() : Support::no(choice.reason());
}

bool is_shape_value(const ir::Node& node) { return node.is("tenon::ShapeValue"); }

}  // namespace tenon::kernels
