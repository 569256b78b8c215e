#include "graph_partitioner/passes/host_time.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/primitives.h"

namespace tenon {
namespace {

using ir::kNoNode;
using ir::kNoValue;

// Nanoseconds of one thread on an x86_64 with AVX-512, rounded. Only their ratios count.
constexpr double kStockNode = 600;       // to run one more node
constexpr double kOurLaunch = 300;       // to run one more kernel of a partition
constexpr double kPartition = 300;       // to call a partition
constexpr double kMultiplyAdd = 0.0139;  // of floats, in the runtime's library
constexpr double kPlainProduct = 1.06;   // how much longer ours take, weights of a cache's size
constexpr double kLargeProduct = 1.15;   // and others: up to 1.3, where a tile of rows is not full
constexpr double kWeightsOfACache = 1 << 20;
// A file with more weights than that reads them from memory at each Run, beside what it computes:
// few rows hide none of it, and less in ours, which have fewer reads on the way.
constexpr double kWeightRead = 0.3;
constexpr double kPlainWeightRead = 0.42;
constexpr double kColumnsAtOnce = 16;   // fewer take as long
constexpr double kPackedProduct = 0.9;  // of weights in blocks: 0.3 to 1.06 of stock kernels' time
constexpr double kElementThroughMemory = 0.1;  // read or written, by one of our kernels
constexpr double kArithmetic = 0.03;           // of an element in registers
constexpr double kTranscendental = 0.35;
constexpr double kErf = 0.5;
constexpr double kReduction = 0.08;
// Stock convolutions keep channels in blocks, and fuse what stands behind them: to read or write a
// tensor of theirs elsewhere costs another pass.
constexpr double kOtherLayout = 0.6;

// What a stock kernel takes for each element of its result.
struct StockOp {
  std::string_view op;
  double nanoseconds;
};
constexpr double kStockArithmetic = 0.2;
constexpr double kStockSkipNorm = 4.5;
constexpr double kStockSpelledGelu = 0.5;  // which it makes one node of
constexpr double kStockGroupedScore = 2;   // of GroupQueryAttention, beside product and softmax
constexpr StockOp kStockOps[] = {
    {"Cast", 0.2},
    {"Concat", 0.2},
    {"Constant", 0},
    {"Cos", 1.5},
    {"Erf", 0.45},
    {"Exp", 0.25},
    {"Expand", 0.2},
    {"Flatten", 0},
    {"Gather", 0.2},
    {"Gelu", 0.5},
    {"GridSample", 2},  // or up to 100: of few channels, by padding_mode and mode
    {"Identity", 0},
    {"LayerNormalization", 0.45},
    {"Pow", 0.35},
    {"Reshape", 0},
    {"Shape", 0},
    {"Sigmoid", 0.33},
    {"SimplifiedLayerNormalization", 0.25},
    {"Sin", 1.5},
    {"Size", 0},
    {"Slice", 0.2},
    {"Softmax", 0.3},
    {"Softplus", 9},
    {"Split", 0.2},
    {"Squeeze", 0},
    {"Tanh", 0.33},
    {"Transpose", 0.3},
    {"Unsqueeze", 0},
    {"Where", 0.3},
    {"com.microsoft::BiasGelu", 0.75},
    {"com.microsoft::FastGelu", 0.5},
    {"com.microsoft::Gelu", 0.5},
    {"com.microsoft::QuickGelu", 0.5},
    {"com.microsoft::SkipLayerNormalization", kStockSkipNorm},
    {"com.microsoft::SkipSimplifiedLayerNormalization", 0.8},
};

constexpr std::string_view kAttentionOps[] = {"Attention", "com.microsoft::Attention",
                                              "com.microsoft::GroupQueryAttention",
                                              "com.microsoft::MultiHeadAttention"};
constexpr std::string_view kCountedAsWhatTheyAre[] = {"Attention",
                                                      "Gemm",
                                                      "MatMul",
                                                      "com.microsoft::Attention",
                                                      "com.microsoft::FusedMatMul",
                                                      "com.microsoft::GroupQueryAttention",
                                                      "com.microsoft::MatMulNBits",
                                                      "com.microsoft::MultiHeadAttention"};

constexpr std::string_view kBlockedOps[] = {"AveragePool",       "Conv",          "ConvTranspose",
                                            "GlobalAveragePool", "GlobalMaxPool", "MaxPool"};
constexpr std::string_view kFusedBehindConvolutions[] = {
    "Add", "Clip", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Tanh"};

bool is_listed(const auto& list, std::string_view op) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

double stock_nanoseconds(std::string_view op) {
  const auto found = std::find_if(std::begin(kStockOps), std::end(kStockOps),
                                  [&](const StockOp& one) { return one.op == op; });
  return found == std::end(kStockOps) ? kStockArithmetic : found->nanoseconds;
}

class Estimate {
 public:
  Estimate(const ir::Graph& whole, const ir::Graph& cut, const ir::Graph& fused, int64_t size)
      : whole_(whole), cut_(cut), fused_(fused), size_(size) {
    for (const ir::NodeId id : cut_.order()) by_source_[cut_.node(id).sources[0]] = id;
    for (const ir::ValueId id : cut_.inputs()) collect_symbols(cut_, id, symbols_);
    for (ir::ValueId id = 0; id < static_cast<ir::ValueId>(whole_.value_count()); ++id) {
      if (whole_.value(id).is_constant()) weights_ += elements(whole_, id);
    }
  }

  HostTime time() {
    time_.ours = kPartition;
    for (const ir::NodeId id : fused_.order()) add(fused_.node(id));
    // What dissolved: shape arithmetic, and what was folded. The runtime calls it all the same.
    for (const auto& [source, id] : by_source_) {
      if (!counted_.contains(source)) time_.stock += kStockNode;
    }
    add_layouts();
    return time_;
  }

 private:
  double elements(const ir::Graph& graph, ir::ValueId id) const {
    if (id == kNoValue || !graph.value(id).shape) return 0;
    double count = 1;
    for (const Dim& dim : *graph.value(id).shape) {
      count *= number(dim);
    }
    return count;
  }

  static void collect_symbols(const ir::Graph& graph, ir::ValueId id,
                              std::vector<std::string>& into) {
    if (id == kNoValue || !graph.value(id).shape) return;
    for (const Dim& dim : *graph.value(id).shape) dim.collect_symbols(into);
  }

  // The runtime names a size anew where it cannot tell it: such a shape says nothing.
  bool is_told(const ir::Node& imported) const {
    std::vector<std::string> symbols;
    for (const ir::ValueId id : imported.outputs) {
      if (id != kNoValue && !cut_.value(id).shape) return false;
      collect_symbols(cut_, id, symbols);
    }
    return std::all_of(symbols.begin(), symbols.end(), [&](const std::string& symbol) {
      return std::find(symbols_.begin(), symbols_.end(), symbol) != symbols_.end();
    });
  }

  double largest_result(const ir::Graph& graph, const ir::Node& node) const {
    double most = 0;
    for (const ir::ValueId id : node.outputs) most = std::max(most, elements(graph, id));
    return most;
  }

  void add(const ir::Node& node) {
    if (node.is(ir::kScaledDot)) {
      add_product(node, ir::ScaledDot::from(node));
    } else if (node.is(ir::kAttention)) {
      add_attention(node, ir::Attention::from(node));
    } else {
      add_sources(node, fused_domain(node));
      if (node.body) time_.ours += kOurLaunch + memory(node) + arithmetic(*node.body);
      // A view costs nothing, and other structural nodes what they cost elsewhere.
      if (!node.body && !node.is("Reshape")) time_.ours += kOurLaunch + memory(node);
    }
  }

  double fused_domain(const ir::Node& node) const {
    double most = largest_result(fused_, node);
    for (const ir::ValueId id : node.inputs) {
      if (id != kNoValue && !fused_.value(id).is_constant()) {
        most = std::max(most, elements(fused_, id));
      }
    }
    return most;
  }

  // What stock kernels take for the imported nodes that `node` stands for, each counted once.
  void add_sources(const ir::Node& node, double most) {
    double passes = 0;
    std::set<std::string_view> ops;
    for (const int source : node.sources) {
      const auto found = by_source_.find(source);
      if (found == by_source_.end() || !counted_.insert(source).second) continue;
      const ir::Node& imported = cut_.node(found->second);
      time_.stock += kStockNode;
      ops.insert(imported.op);
      if (is_listed(kCountedAsWhatTheyAre, imported.op)) continue;
      const double count =
          is_told(imported) ? std::min(largest_result(cut_, imported), most) : most;
      passes +=
          (is_norm_of_sum(imported) ? kStockSkipNorm : stock_nanoseconds(imported.op)) * count;
    }
    const bool is_gelu = ops.contains("Erf") || (ops.contains("Tanh") && ops.contains("Pow"));
    time_.stock += is_gelu ? std::min(passes, kStockSpelledGelu * most) : passes;
  }

  // The runtime makes one SkipLayerNormalization of both, if nobody else reads the sum.
  bool is_norm_of_sum(const ir::Node& imported) const {
    if (!imported.is("LayerNormalization")) return false;
    const ir::Node* sum = cut_.producer(imported.inputs[0]);
    return sum && sum->is("Add") && cut_.has_one_use(imported.inputs[0]) &&
           std::none_of(sum->inputs.begin(), sum->inputs.end(),
                        [&](ir::ValueId id) { return cut_.value(id).is_constant(); });
  }

  double memory(const ir::Node& node) const {
    double count = 0;
    for (const auto* list : {&node.inputs, &node.outputs}) {
      for (const ir::ValueId id : *list) {
        if (id != kNoValue && !fused_.value(id).is_constant()) count += elements(fused_, id);
      }
    }
    return count * kElementThroughMemory;
  }

  double arithmetic(const ir::Graph& body) const {
    double sum = 0;
    for (const ir::NodeId id : body.order()) {
      const ir::Node& node = body.node(id);
      const ir::Primitive* primitive = ir::find_primitive(node.op);
      if (!primitive || primitive->kind == ir::PrimitiveClass::kMovement) continue;
      const bool reduces = primitive->kind == ir::PrimitiveClass::kReduction;
      const double count = reduces ? elements(body, node.inputs[0]) : largest_result(body, node);
      sum += count * (reduces                ? kReduction
                      : node.is("Erf")       ? kErf
                      : primitive->expensive ? kTranscendental
                                             : kArithmetic);
    }
    return sum;
  }

  void add_product(const ir::Node& node, const ir::ScaledDot& dot) {
    const double results = largest_result(fused_, node);
    add_sources(node, results);
    const bool is_packed = dot.scale_b.scale != kNoValue || dot.b_type != DType::kUndefined;
    const bool is_f32 = fused_.value(dot.a).dtype == DType::kF32;
    const double product = results * depth(dot) * kMultiplyAdd;
    time_.stock += product;
    const double plain = elements(fused_, dot.b) < kWeightsOfACache ? kPlainProduct : kLargeProduct;
    time_.ours += kOurLaunch + product * (is_packed || !is_f32 ? kPackedProduct : plain) *
                                   std::max(1.0, kColumnsAtOnce / columns(dot));
    if (!is_packed && is_f32) add_weight_reads(fused_.value(dot.b));
    if (node.body) time_.ours += arithmetic(*node.body);
    for (const ir::ValueId id : dot.extra) {
      time_.ours += elements(fused_, id) * kElementThroughMemory;
    }
  }

  void add_weight_reads(const ir::Value& weight) {
    if (!weight.is_constant() || weights_ < kWeightsOfACache) return;
    const auto count = static_cast<double>(weight.constant->elements());
    time_.stock += count * kWeightRead;
    time_.ours += count * kPlainWeightRead;
  }

  double columns(const ir::ScaledDot& dot) const {
    const auto& shape = fused_.value(dot.b).shape;
    if (!shape || shape->empty() || !dot.b_dims.empty()) return kColumnsAtOnce;
    const size_t axis = dot.b_k_last && shape->size() > 1 ? shape->size() - 2 : shape->size() - 1;
    return std::max(1.0, number((*shape)[axis]));
  }

  // One size for every symbol may be none that the graph takes: nothing broadcasts 32 to 64.
  double number(const Dim& dim) const {
    try {
      const int64_t value = dim.evaluate([&](std::string_view) { return size_; });
      return static_cast<double>(std::max<int64_t>(value, 0));
    } catch (const UserError&) {
      return static_cast<double>(size_);
    }
  }

  double depth(const ir::ScaledDot& dot) const {
    const auto& shape = fused_.value(dot.a).shape;
    if (!shape || shape->empty()) return 1;
    const size_t axis = dot.a_k_first && shape->size() > 1 ? shape->size() - 2 : shape->size() - 1;
    return number((*shape)[axis]);
  }

  // Products and softmax are as fast as stock kernels'; what is gained are the passes over scores.
  void add_attention(const ir::Node& node, const ir::Attention& attention) {
    const double scores = scores_of(attention);
    const double width = elements(fused_, attention.q) / std::max(1.0, scores_rows(attention));
    const double products = 2 * scores * width * kMultiplyAdd;
    const double softmax = scores * stock_nanoseconds("Softmax");
    time_.ours += kOurLaunch + products + softmax + memory(node);
    time_.stock += products;
    add_sources(node, scores);
    const std::string_view op = attention_op(node);
    if (op.empty()) return;
    time_.stock += softmax + memory(node);
    if (op == "com.microsoft::GroupQueryAttention") time_.stock += scores * kStockGroupedScore;
  }

  // The op of the imported graph that is one attention, too; empty for several nodes.
  std::string_view attention_op(const ir::Node& node) const {
    for (const int source : node.sources) {
      const auto found = by_source_.find(source);
      if (found == by_source_.end()) continue;
      const std::string& op = cut_.node(found->second).op;
      if (is_listed(kAttentionOps, op)) return op;
    }
    return {};
  }

  double dim_of(ir::ValueId id, const std::string& layout, char letter) const {
    const auto& shape = fused_.value(id).shape;
    const size_t axis = layout.find(letter);
    if (!shape || axis >= shape->size()) return 1;
    return number((*shape)[axis]);
  }

  double scores_rows(const ir::Attention& attention) const {
    return dim_of(attention.q, attention.q_layout, 'b') *
           static_cast<double>(std::max<int64_t>(1, attention.q_heads)) *
           dim_of(attention.q, attention.q_layout, 's');
  }

  double scores_of(const ir::Attention& attention) const {
    double keys = dim_of(attention.k, attention.k_layout, 's');
    if (attention.past_k != kNoValue) keys += dim_of(attention.past_k, "bhsd", 's');
    return scores_rows(attention) * keys;
  }

  void add_layouts() {
    for (const ir::ValueId id : cut_.inputs()) {
      const ir::Node* producer = whole_.producer(whole_.find(cut_.value(id).name));
      if (!producer || !is_listed(kBlockedOps, producer->op)) continue;
      double passes = kOtherLayout;
      for (const ir::NodeId reader : cut_.consumers(id)) {
        if (is_listed(kFusedBehindConvolutions, cut_.node(reader).op)) passes += kStockArithmetic;
      }
      time_.ours += elements(cut_, id) * passes;
    }
    for (const ir::ValueId id : cut_.outputs()) {
      const std::vector<ir::NodeId> readers = whole_.consumers(whole_.find(cut_.value(id).name));
      const bool is_read_in_blocks = std::any_of(
          readers.begin(), readers.end(),
          [&](ir::NodeId reader) { return is_listed(kBlockedOps, whole_.node(reader).op); });
      if (is_read_in_blocks) time_.ours += elements(cut_, id) * kOtherLayout;
    }
  }

  const ir::Graph& whole_;
  const ir::Graph& cut_;
  const ir::Graph& fused_;
  const int64_t size_;
  std::map<int, ir::NodeId> by_source_;
  std::vector<std::string> symbols_;  // of the cut's inputs
  double weights_ = 0;                // elements of the whole graph's constants
  std::set<int> counted_;
  HostTime time_;
};

}  // namespace

HostTime host_time(const ir::Graph& whole, const ir::Graph& cut, const ir::Graph& fused,
                   int64_t size) {
  return Estimate(whole, cut, fused, size).time();
}

}  // namespace tenon
