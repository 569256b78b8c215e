#include "kernels/autotune/fusion_key.h"

#include <map>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "graph_partitioner/ir/fusions.h"

namespace tenon::kernels {
namespace {

// Whole batches of rows by a constant matrix are one tall matrix.
bool has_rows(const ir::Graph& graph, const ir::Node& node) {
  if (node.is(ir::kMergedDots)) return true;
  if (!node.is(ir::kScaledDot)) return false;
  const ir::ScaledDot dot = ir::ScaledDot::from(node);
  return graph.value(dot.b).is_constant() && !dot.a_k_first;
}

class KeyWriter {
 public:
  explicit KeyWriter(bool has_rows) : has_rows_(has_rows) {}

  std::string values(const ir::Graph& graph, const std::vector<ir::ValueId>& ids) const {
    std::vector<std::string> texts;
    for (const ir::ValueId id : ids) {
      texts.push_back(id == ir::kNoValue ? "-" : type(graph.value(id)));
    }
    return fmt::format("({})", fmt::join(texts, ", "));
  }

  // Without names: values of a body are numbered as they come up.
  std::string body(const ir::Graph& graph) const {
    std::map<ir::ValueId, size_t> numbers;
    const auto number = [&](ir::ValueId id) {
      return id == ir::kNoValue
                 ? std::string("-")
                 : fmt::format("%{}", numbers.try_emplace(id, numbers.size()).first->second);
    };
    for (const ir::ValueId id : graph.inputs()) number(id);
    std::string text = "{";
    for (const ir::NodeId id : graph.order()) {
      const ir::Node& node = graph.node(id);
      for (const ir::ValueId input : node.inputs) text += number(input) + " ";
      text += fmt::format("{}{} -> {}", node.op, values(graph, node.inputs),
                          values(graph, node.outputs));
      for (const ir::ValueId output : node.outputs) text += " " + number(output);
      text += rest(node) + "; ";
    }
    for (const ir::ValueId id : graph.outputs()) text += number(id) + " ";
    return text + "}";
  }

  // Attributes and body.
  std::string rest(const ir::Node& node) const {
    std::string text = fmt::format("@{}", node.since_version);
    for (const auto& [name, value] : node.attributes) {
      text += fmt::format(" {}={}", name, std::visit(AttributeText{}, value));
    }
    return node.body ? text + " " + body(*node.body) : text;
  }

 private:
  // Numbers of floats do not change what runs, but whether there are any does.
  struct AttributeText {
    std::string operator()(int64_t value) const { return fmt::format("{}", value); }
    std::string operator()(float value) const {
      return value == 0.0f ? "0.0" : value == 1.0f ? "1.0" : "float";
    }
    std::string operator()(const std::string& value) const { return fmt::format("'{}'", value); }
    std::string operator()(const std::vector<int64_t>& values) const {
      return fmt::format("[{}]", fmt::join(values, ","));
    }
    std::string operator()(const std::vector<float>& values) const {
      return fmt::format("{} floats", values.size());
    }
    std::string operator()(const std::vector<std::string>& values) const {
      return fmt::format("['{}']", fmt::join(values, "','"));
    }
    std::string operator()(const ir::TensorPtr& tensor) const {
      return fmt::format("{}[{}]", name(tensor->dtype), fmt::join(tensor->dims, ","));
    }
  };

  std::string type(const ir::Value& value) const {
    std::vector<std::string> sizes;
    if (value.shape) {
      for (const Dim& dim : *value.shape) {
        sizes.push_back(dim.is_constant() ? dim.text() : std::string("?"));
      }
    }
    if (has_rows_ && !value.is_constant() && sizes.size() > 1) sizes = {"*", sizes.back()};
    return fmt::format("{}[{}]{}", name(value.dtype),
                       value.shape ? fmt::format("{}", fmt::join(sizes, ",")) : "...",
                       value.is_constant() ? "#" : "");
  }

  const bool has_rows_;
};

std::string_view suffix(Precision precision) {
  switch (precision) {
    case Precision::kInt8:
      return " int8";
    case Precision::kTf32:
      return " tf32";
    case Precision::kExact:
      break;
  }
  return "";
}

}  // namespace

FusionKey fusion_key(const ir::Graph& graph, const ir::Node& node, Precision precision) {
  constexpr size_t kDigits = 32;
  const KeyWriter writer(has_rows(graph, node));
  FusionKey key;
  key.text = fmt::format("{}{} -> {}{}", node.op, writer.values(graph, node.inputs),
                         writer.values(graph, node.outputs), suffix(precision));
  key.fingerprint = hex(sha256(key.text + writer.rest(node))).substr(0, kDigits);
  return key;
}

}  // namespace tenon::kernels
