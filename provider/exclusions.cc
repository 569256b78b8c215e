#include "provider/exclusions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <utility>

namespace tenon::provider {
namespace {

bool may_be_function(std::string_view op) {
  return op.find("::") != std::string_view::npos && !op.starts_with("com.microsoft::") &&
         !op.starts_with("trt::") && !op.starts_with("ai.onnx");
}

std::string complaint(std::string_view option, const std::vector<std::string>& entries) {
  return fmt::format(
      "{} names what no node of the model is: {}; it is misspelt, or ONNX Runtime's optimiser has "
      "changed the node",
      option, fmt::join(entries, ", "));
}

}  // namespace

Exclusions::Exclusions(const Options& options)
    : ops_(options.exclude_ops.begin(), options.exclude_ops.end()),
      nodes_(options.exclude_nodes.begin(), options.exclude_nodes.end()) {}

void Exclusions::see(const ir::Graph& graph) {
  if (ops_.empty() && nodes_.empty()) return;
  for (const ir::NodeId id : graph.order()) {
    const ir::Node& node = graph.node(id);
    ops_.erase(node.op);
    nodes_.erase(node.name);
    seen_ops_.insert(node.op);
    calls_functions_ |= may_be_function(node.op);
  }
}

bool Exclusions::awaits_inlining() {
  return std::exchange(calls_functions_, false) && !std::exchange(waited_, true);
}

std::vector<std::string> Exclusions::complaints() const {
  std::vector<std::string> sentences, entries;
  for (const std::string& op : ops_) {
    std::string& entry = entries.emplace_back(op);
    for (const std::string& seen : seen_ops_) {
      if (seen.ends_with("::" + op)) entry += fmt::format(" (the model has {})", seen);
    }
  }
  if (!entries.empty()) sentences.push_back(complaint("exclude_ops", entries));
  if (!nodes_.empty())
    sentences.push_back(complaint("exclude_nodes", {nodes_.begin(), nodes_.end()}));
  return sentences;
}

}  // namespace tenon::provider
