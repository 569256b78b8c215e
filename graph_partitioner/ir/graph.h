// The graph that every pass reads and rewrites.
//
// Rules (verify.h checks them):
// - A Value is written once: by a node's output, as a graph input, or as a constant.
// - Node inputs may be kNoValue (an optional input left out); outputs too.
// - Nodes are kept in topological order.
// - Names of values are unique in a graph. Constants are values with data and no producer.
// - An op is written "Name" in ONNX's own domain, "domain::Name" elsewhere; ours are "tenon::Name".
// - `sources` of a node are the ids of the imported nodes that it stands for. A pass that replaces
//   or dissolves nodes hands their sources on; an imported node may stand in several nodes' sources
//   (a shared dequantisation). This is what claims and reports are made of.
// - `requirements` outlive the nodes that they come from; a body has none.
// - Only fusions have a body: a graph whose inputs and outputs pair with the node's own, in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/shape.h"
#include "graph_partitioner/ir/requirement.h"

namespace tenon::ir {

using ValueId = int32_t;
using NodeId = int32_t;
inline constexpr ValueId kNoValue = -1;
inline constexpr NodeId kNoNode = -1;

// What was found out about the bytes of a tensor, by question: weights are large, and everyone who
// plans with one asks again.
class TensorFacts {
 public:
  // `find` answers where nobody has asked before. Thread-safe.
  int64_t ask(std::string_view question, const std::function<int64_t()>& find);

 private:
  std::mutex mutex_;
  std::map<std::string, int64_t, std::less<>> answers_;
};

// Bytes of a constant, row-major and packed as in the file. `owner` keeps them alive.
struct Tensor {
  DType dtype = DType::kUndefined;
  std::vector<int64_t> dims;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::shared_ptr<const void> owner;
  // Digest of the true bytes where a text left them out: `data` is zeros then.
  std::string stands_for;
  std::shared_ptr<TensorFacts> facts = std::make_shared<TensorFacts>();

  int64_t elements() const;
  static std::shared_ptr<const Tensor> copy(DType dtype, std::vector<int64_t> dims,
                                            std::span<const std::byte> bytes);
  // From plain numbers, encoded to `dtype`; for tests, folding and decompositions.
  static std::shared_ptr<const Tensor> of(DType dtype, std::vector<int64_t> dims,
                                          const std::vector<double>& values);
};
using TensorPtr = std::shared_ptr<const Tensor>;

struct Value {
  std::string name;
  DType dtype = DType::kUndefined;
  std::optional<Shape> shape;  // nullopt: even the rank is unknown
  NodeId producer = kNoNode;
  TensorPtr constant;        // set for constants and for defaults of overridable inputs
  bool overridable = false;  // a graph input with a default: `constant` may be replaced at Run
  // Elements of a small integer tensor as dims, where shape arithmetic knows them.
  std::optional<std::vector<Dim>> elements;

  bool is_constant() const { return constant != nullptr && !overridable; }
};

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>,
                               std::vector<float>, std::vector<std::string>, TensorPtr>;

class Graph;

struct Node {
  std::string op;
  std::string name;
  int since_version = 0;
  std::map<std::string, Attribute> attributes;
  std::vector<ValueId> inputs;
  std::vector<ValueId> outputs;
  std::vector<int> sources;           // ids of imported nodes, sorted, unique
  std::shared_ptr<const Graph> body;  // fusions only

  bool is(std::string_view other) const { return op == other; }
  ValueId input(size_t index) const { return index < inputs.size() ? inputs[index] : kNoValue; }
  ValueId output(size_t index) const { return index < outputs.size() ? outputs[index] : kNoValue; }
  bool has(std::string_view attribute) const;
  // Throw UserError naming node and attribute when the type differs.
  int64_t integer(std::string_view attribute, int64_t otherwise) const;
  float number(std::string_view attribute, float otherwise) const;
  std::string text(std::string_view attribute, std::string_view otherwise) const;
  std::vector<int64_t> integers(std::string_view attribute) const;
  std::vector<float> numbers(std::string_view attribute) const;
  std::vector<std::string> texts(std::string_view attribute) const;
  TensorPtr tensor(std::string_view attribute) const;
};

class Graph {
 public:
  std::string name;

  ValueId add_value(Value value);  // picks another name when this one is taken
  ValueId add_constant(std::string name, TensorPtr tensor);
  ValueId add_input(Value value);
  void add_output(ValueId value) { outputs_.push_back(value); }
  void set_output(size_t index, ValueId value) { outputs_.at(index) = value; }
  // Sets the producer of the outputs. Appends; `insert_before` keeps topological order in passes.
  NodeId add_node(Node node);
  NodeId insert_before(NodeId position, Node node);

  const Value& value(ValueId id) const { return values_.at(id); }
  Value& value(ValueId id) { return values_.at(id); }
  const Node& node(NodeId id) const { return nodes_.at(id); }
  Node& node(NodeId id) { return nodes_.at(id); }
  size_t value_count() const { return values_.size(); }
  size_t node_count() const { return nodes_.size(); }  // removed ones too: all ids are below it
  // Ids of live nodes in topological order.
  const std::vector<NodeId>& order() const { return order_; }
  const std::vector<ValueId>& inputs() const { return inputs_; }
  const std::vector<ValueId>& outputs() const { return outputs_; }
  bool is_output(ValueId id) const;
  bool is_input(ValueId id) const;

  // Between sizes that only a Run can compare, each once.
  const std::vector<Requirement>& requirements() const { return requirements_; }
  void require(Requirement requirement);
  void drop_requirements(const std::function<bool(const Requirement&)>& which);

  const Node* producer(ValueId id) const;           // null for inputs, constants and kNoValue
  std::vector<NodeId> consumers(ValueId id) const;  // live nodes, in order, each once
  bool has_one_use(ValueId id) const;               // one consuming input slot, not an output
  ValueId find(std::string_view name) const;        // kNoValue when absent
  void rename(ValueId id, std::string name);        // picks another name when this one is taken

  // Every use of `from` (node inputs and graph outputs) becomes `to`. Where `from` is a graph
  // output its name moves along, unless `to` is a graph input, a constant or another output.
  void replace_uses(ValueId from, ValueId to);
  void remove_node(NodeId id);  // its outputs must have no uses left
  int remove_dead_nodes();      // nodes none of whose outputs is used; returns how many
  void sort_topologically();    // throws InternalError on a cycle

 private:
  // Deques: who rewrites holds on to one while others are added.
  std::deque<Value> values_;
  std::deque<Node> nodes_;
  std::vector<NodeId> order_;
  std::vector<ValueId> inputs_, outputs_;
  std::vector<Requirement> requirements_;
  std::unordered_map<std::string, ValueId> by_name_;

  std::string free_name(std::string wanted) const;
  void set_producer(NodeId id);
};

// a ∪ b, sorted.
std::vector<int> merge_sources(const std::vector<int>& a, const std::vector<int>& b);

}  // namespace tenon::ir
