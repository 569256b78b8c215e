#include "kernels/reference/evaluate.h"

#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace tenon::kernels::reference {
namespace {

using OpTable = std::unordered_map<std::string_view, Outputs (*)(const Call&)>;

const OpTable& op_table() {
  static const OpTable table = [] {
    OpTable merged;
    for (const auto family :
         {pointwise_ops(), activation_ops(), conversion_ops(), reduction_ops(), normalization_ops(),
          movement_ops(), scatter_ops(), shape_ops(), dot_ops(), attention_ops(),
          paged_attention_ops(), rotary_ops(), fusion_ops(), window_ops()}) {
      for (const OpEntry& entry : family) {
        if (!merged.emplace(entry.op, entry.evaluate).second) {
          throw InternalError("the reference lists an op twice: " + std::string(entry.op));
        }
      }
    }
    return merged;
  }();
  return table;
}

// The size of a dim, or nothing when a symbol in it is unknown.
std::optional<int64_t> known_size(const Dim& dim, const Symbols& symbols) {
  std::vector<std::string> names;
  dim.collect_symbols(names);
  for (const std::string& name : names) {
    if (!symbols.contains(name)) return std::nullopt;
  }
  return dim.evaluate([&](std::string_view name) { return symbols.find(name)->second; });
}

std::optional<Dims> known_dims(const std::optional<Shape>& shape, const Symbols& symbols) {
  if (!shape) return std::nullopt;
  Dims dims;
  for (const Dim& dim : *shape) {
    const std::optional<int64_t> size = known_size(dim, symbols);
    if (!size) return std::nullopt;
    dims.push_back(*size);
  }
  return dims;
}

void bind_symbols(const ir::Graph& graph, const std::vector<ReferenceTensor>& inputs,
                  Symbols& symbols) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::optional<Shape>& shape = graph.value(graph.inputs()[i]).shape;
    if (!shape) continue;
    for (size_t axis = 0; axis < shape->size() && axis < inputs[i].dims.size(); ++axis) {
      std::vector<std::string> names;
      (*shape)[axis].collect_symbols(names);
      const bool plain = names.size() == 1 && (*shape)[axis] == Dim::symbol(names[0]);
      if (plain) symbols.emplace(names[0], inputs[i].dims[axis]);
    }
  }
}

void check_dims(const ir::Value& value, const Dims& dims, const Symbols& symbols) {
  const std::optional<Dims> declared = known_dims(value.shape, symbols);
  if (declared && *declared != dims) {
    throw InternalError(fmt::format("value '{}' is declared as {} = {}, but comes out as {}",
                                    value.name, text(*value.shape), *declared, dims));
  }
}

class Evaluation {
 public:
  Evaluation(const ir::Graph& graph, const EvaluateOptions& options)
      : graph_(graph), options_(options), symbols_(options.symbols), values_(graph.value_count()) {}

  Outputs run(const std::vector<ReferenceTensor>& inputs) {
    bind_symbols(graph_, inputs, symbols_);
    take_inputs(inputs);
    for (size_t id = 0; id < graph_.value_count(); ++id) {
      const ir::Value& value = graph_.value(static_cast<ir::ValueId>(id));
      if (value.constant && !values_[id]) values_[id] = ReferenceTensor::from(*value.constant);
    }
    for (const ir::NodeId id : graph_.order()) run_node(graph_.node(id));
    Outputs results;
    for (const ir::ValueId id : graph_.outputs())
      results.push_back(*values_.at(static_cast<size_t>(id)));
    return results;
  }

 private:
  void take_inputs(const std::vector<ReferenceTensor>& inputs) {
    if (inputs.size() > graph_.inputs().size()) {
      throw InternalError(
          fmt::format("the graph takes {} inputs, got {}", graph_.inputs().size(), inputs.size()));
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      check_dims(graph_.value(graph_.inputs()[i]), inputs[i].dims, symbols_);
      values_[static_cast<size_t>(graph_.inputs()[i])] = inputs[i];
    }
  }

  void run_node(const ir::Node& node) {
    const auto found = op_table().find(node.op);
    if (found == op_table().end()) {
      throw UserError(
          fmt::format("the reference does not know {} (node '{}')", node.op, node.name));
    }
    Call call{graph_, node, symbols_, options_.round_values, {}};
    for (const ir::ValueId id : node.inputs) {
      if (id != ir::kNoValue && !values_.at(static_cast<size_t>(id))) {
        throw InternalError(fmt::format("node '{}' ({}) reads '{}' before it is written", node.name,
                                        node.op, graph_.value(id).name));
      }
      call.inputs.push_back(id == ir::kNoValue ? nullptr : &*values_[static_cast<size_t>(id)]);
    }
    Outputs results = found->second(call);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != ir::kNoValue) store(node, i, results);
    }
  }

  void store(const ir::Node& node, size_t index, Outputs& results) {
    if (index >= results.size() || results[index].dtype == DType::kUndefined) {
      throw UserError(
          fmt::format("the reference does not compute output {} of {}", index, node.op));
    }
    const ir::Value& value = graph_.value(node.outputs[index]);
    ReferenceTensor& result = results[index];
    check_dims(value, result.dims, symbols_);
    if (value.dtype != DType::kUndefined && value.dtype != result.dtype) {
      throw InternalError(fmt::format("value '{}' is declared as {}, but comes out as {}",
                                      value.name, name(value.dtype), name(result.dtype)));
    }
    values_[static_cast<size_t>(node.outputs[index])] =
        options_.round_values ? result.rounded() : std::move(result);
  }

  const ir::Graph& graph_;
  const EvaluateOptions& options_;
  Symbols symbols_;
  std::vector<std::optional<ReferenceTensor>> values_;
};

}  // namespace

const ReferenceTensor& Call::input(size_t index) const {
  if (!has(index)) {
    throw UserError(fmt::format("node '{}' ({}) lacks input {}", node.name, node.op, index));
  }
  return *inputs[index];
}

std::optional<std::vector<int64_t>> Call::integers(size_t input_index,
                                                   std::string_view attribute) const {
  if (has(input_index)) return input(input_index).integers;
  if (!attribute.empty() && node.has(attribute)) return node.integers(attribute);
  return std::nullopt;
}

double Call::scalar(size_t input_index, double otherwise) const {
  return has(input_index) ? input(input_index).number(0) : otherwise;
}

DType Call::output_type(size_t index) const {
  const ir::ValueId id = node.output(index);
  const DType declared = id == ir::kNoValue ? DType::kUndefined : graph.value(id).dtype;
  return declared != DType::kUndefined || !has(0) ? declared : input(0).dtype;
}

std::optional<Dims> Call::output_dims(size_t index) const {
  const ir::ValueId id = node.output(index);
  return id == ir::kNoValue ? std::nullopt : known_dims(graph.value(id).shape, symbols);
}

Dims Call::required_output_dims(size_t index) const {
  if (const std::optional<Dims> dims = output_dims(index)) return *dims;
  throw UserError(fmt::format("node '{}' ({}) needs the shape of its output", node.name, node.op));
}

int64_t Call::value_of(const Dim& dim) const {
  if (const std::optional<int64_t> size = known_size(dim, symbols)) return *size;
  throw UserError(fmt::format("node '{}': no input tells the size of {}", node.name, dim.text()));
}

std::vector<ReferenceTensor> evaluate(const ir::Graph& graph,
                                      const std::vector<ReferenceTensor>& inputs,
                                      const EvaluateOptions& options) {
  return Evaluation(graph, options).run(inputs);
}

bool is_known(std::string_view op) { return op_table().contains(op); }

}  // namespace tenon::kernels::reference
