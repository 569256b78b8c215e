#include <algorithm>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "base/hash.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::ir {
namespace {

bool is_bare(std::string_view word) {
  return !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '.' || c == '/' || c == '-' || c == '$';
  });
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result + '"';
}

std::string word(std::string_view text) { return is_bare(text) ? std::string(text) : quoted(text); }

// Always told apart from an integer: 1.0, 1e-05, inf, nan.
std::string number(float value) {
  std::string text = fmt::format("{}", value);
  const bool plain_digits = text.find_first_not_of("-0123456789") == std::string::npos;
  return plain_digits ? text + ".0" : text;
}

template <typename List, typename Format>
std::string joined(const List& list, std::string_view separator, Format&& format) {
  std::string result;
  for (const auto& item : list) {
    if (!result.empty()) result += separator;
    result += format(item);
  }
  return result;
}

class Printer {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  std::string graph(const Graph& graph) {
    text_ = fmt::format("graph {} {{\n", word(graph.name));
    contents(graph, 1);
    return std::move(text_) + "}\n";
  }

  std::string one_node(const Graph& graph, const Node& one) {
    text_.clear();
    node(graph, one, 0);
    return std::move(text_);
  }

 private:
  void contents(const Graph& graph, int depth) {
    for (ValueId id : graph.inputs()) {
      line(depth, fmt::format("input {}", value(graph.value(id))));
    }
    for (ValueId id : used_constants(graph)) {
      line(depth, fmt::format("const {}", value(graph.value(id))));
    }
    for (NodeId id : graph.order()) node(graph, graph.node(id), depth);
    for (const Requirement& required : graph.requirements()) requirement(required, depth);
    for (ValueId id : graph.outputs()) {
      line(depth, fmt::format("output %{}", word(graph.value(id).name)));
    }
  }

  // require equal(k,1024) name="product"
  void requirement(const Requirement& required, int depth) {
    std::string text = fmt::format("require {}({},{})", relation_name(required.relation),
                                   required.left.text(), required.right.text());
    if (!required.node.empty()) text += " name=" + quoted(required.node);
    line(depth, text + sources(required.sources));
  }

  std::string sources(const std::vector<int>& ids) const {
    return options_.sources && !ids.empty() ? fmt::format(" sources=[{}]", fmt::join(ids, ","))
                                            : "";
  }

  static std::vector<ValueId> used_constants(const Graph& graph) {
    std::vector<char> used(graph.value_count(), 0);
    for (ValueId id : graph.outputs()) used[id] = 1;
    for (NodeId id : graph.order()) {
      for (ValueId input : graph.node(id).inputs) {
        if (input != kNoValue) used[input] = 1;
      }
    }
    std::vector<ValueId> result;
    for (ValueId id = 0; id < static_cast<ValueId>(graph.value_count()); ++id) {
      if (used[id] && graph.value(id).is_constant()) result.push_back(id);
    }
    return result;
  }

  void node(const Graph& graph, const Node& node, int depth) {
    std::string text = joined(node.outputs, ", ", [&](ValueId id) {
      return id == kNoValue ? std::string("_") : value(graph.value(id));
    });
    text += fmt::format(" = {}", node.op);
    if (node.since_version != 0) text += fmt::format("@{}", node.since_version);
    text += "(" +
            joined(node.inputs, ", ",
                   [&](ValueId id) {
                     return id == kNoValue ? std::string("_") : "%" + word(graph.value(id).name);
                   }) +
            ")";
    if (!node.attributes.empty()) {
      text += " {" +
              joined(node.attributes, ", ",
                     [&](const auto& item) {
                       return fmt::format("{}={}", word(item.first), attribute(item.second));
                     }) +
              "}";
    }
    if (!node.name.empty()) text += " name=" + quoted(node.name);
    text += sources(node.sources);
    if (!node.body) return line(depth, text);
    line(depth, text + " body {");
    contents(*node.body, depth + 1);
    line(depth, "}");
  }

  // %x: f32[batch,128], with the elements that shape arithmetic knows and a constant's bytes.
  std::string value(const Value& value) const {
    std::string text = fmt::format("%{}: {}", word(value.name), type(value));
    if (value.elements) {
      text += " elements(" +
              joined(*value.elements, ",", [](const Dim& dim) { return dim.text(); }) + ")";
    }
    if (value.constant) text += " = " + bytes(value.constant);
    return text;
  }

  static std::string type(const Value& value) {
    return fmt::format("{}{}", name(value.dtype), value.shape ? text(*value.shape) : "[*]");
  }

  static std::string text(const Shape& shape) {
    return "[" + joined(shape, ",", [](const Dim& dim) { return dim.text(); }) + "]";
  }

  std::string digest(const TensorPtr& tensor) const {
    if (!tensor->stands_for.empty()) return tensor->stands_for;
    const auto anew = [&] { return hex(sha256({tensor->data, tensor->bytes})); };
    if (options_.digests == nullptr) return anew();
    const auto [known, fresh] = options_.digests->try_emplace(tensor);
    if (fresh) known->second = anew();
    return known->second;
  }

  std::string bytes(const TensorPtr& tensor) const {
    if (!tensor->stands_for.empty() || tensor->bytes > options_.inline_constant_bytes) {
      return fmt::format("sha256:{} bytes:{}", digest(tensor), tensor->bytes);
    }
    const std::span<const std::byte> data(tensor->data, tensor->bytes);
    return "hex:" + joined(data, "", [](std::byte byte) {
             return fmt::format("{:02x}", static_cast<unsigned>(byte));
           });
  }

  std::string attribute(const Attribute& attribute) const {
    return std::visit([this](const auto& held) { return this->form(held); }, attribute);
  }
  static std::string form(int64_t held) { return fmt::format("{}", held); }
  static std::string form(float held) { return number(held); }
  static std::string form(const std::string& held) { return quoted(held); }
  static std::string form(const std::vector<int64_t>& held) {
    return fmt::format("[{}]", fmt::join(held, ","));
  }
  // An empty list names its type; others show it.
  static std::string form(const std::vector<float>& held) {
    return held.empty() ? "floats[]" : "[" + joined(held, ",", number) + "]";
  }
  static std::string form(const std::vector<std::string>& held) {
    return held.empty() ? "strings[]" : "[" + joined(held, ",", quoted) + "]";
  }
  std::string form(const TensorPtr& held) const {
    return fmt::format("{}[{}] {}", name(held->dtype), fmt::join(held->dims, ","), bytes(held));
  }

  void line(int depth, const std::string& text) {
    text_.append(2 * depth, ' ').append(text).append("\n");
  }

  const PrintOptions& options_;
  std::string text_;
};

}  // namespace

std::string print(const Graph& graph, const PrintOptions& options) {
  return Printer(options).graph(graph);
}

std::string print(const Graph& graph, const Node& node, const PrintOptions& options) {
  return Printer(options).one_node(graph, node);
}

}  // namespace tenon::ir
