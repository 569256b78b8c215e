#include "graph_partitioner/ir/graph.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <queue>

#include <fmt/format.h>

#include "base/checked.h"
#include "base/convert.h"
#include "base/error.h"
#include "graph_partitioner/ir/collectives.h"

namespace tenon::ir {

int64_t TensorFacts::ask(std::string_view question, const std::function<int64_t()>& find) {
  const std::lock_guard lock(mutex_);
  if (const auto known = answers_.find(question); known != answers_.end()) return known->second;
  return answers_.emplace(question, find()).first->second;
}

int64_t Tensor::elements() const {
  int64_t count = 1;
  for (int64_t dim : dims) count = checked_mul(count, dim);
  return count;
}

TensorPtr Tensor::copy(DType dtype, std::vector<int64_t> dims, std::span<const std::byte> bytes) {
  auto storage = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  auto tensor = std::make_shared<Tensor>();
  tensor->dtype = dtype;
  tensor->dims = std::move(dims);
  tensor->data = storage->data();
  tensor->bytes = storage->size();
  tensor->owner = std::move(storage);
  return tensor;
}

TensorPtr Tensor::of(DType dtype, std::vector<int64_t> dims, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(storage_bytes(dtype, count));
  for (int64_t i = 0; i < count; ++i) store_element(dtype, bytes.data(), i, values[i]);
  TensorPtr tensor = copy(dtype, std::move(dims), bytes);
  if (tensor->elements() != count) {
    throw InternalError(
        fmt::format("Tensor::of: {} values for {} elements", count, tensor->elements()));
  }
  return tensor;
}

namespace {

template <typename T>
const T* find_attribute(const Node& node, std::string_view attribute, std::string_view expected) {
  auto found = node.attributes.find(std::string(attribute));
  if (found == node.attributes.end()) return nullptr;
  const T* typed = std::get_if<T>(&found->second);
  if (typed == nullptr) {
    throw UserError(fmt::format("node '{}' ({}): attribute '{}' must be {}", node.name, node.op,
                                attribute, expected));
  }
  return typed;
}

}  // namespace

bool Node::has(std::string_view attribute) const {
  return attributes.count(std::string(attribute)) != 0;
}

int64_t Node::integer(std::string_view attribute, int64_t otherwise) const {
  const auto* found = find_attribute<int64_t>(*this, attribute, "an integer");
  return found ? *found : otherwise;
}

float Node::number(std::string_view attribute, float otherwise) const {
  const auto* found = find_attribute<float>(*this, attribute, "a float");
  return found ? *found : otherwise;
}

std::string Node::text(std::string_view attribute, std::string_view otherwise) const {
  const auto* found = find_attribute<std::string>(*this, attribute, "a string");
  return found ? *found : std::string(otherwise);
}

std::vector<int64_t> Node::integers(std::string_view attribute) const {
  const auto* found = find_attribute<std::vector<int64_t>>(*this, attribute, "a list of integers");
  return found ? *found : std::vector<int64_t>{};
}

std::vector<float> Node::numbers(std::string_view attribute) const {
  const auto* found = find_attribute<std::vector<float>>(*this, attribute, "a list of floats");
  return found ? *found : std::vector<float>{};
}

std::vector<std::string> Node::texts(std::string_view attribute) const {
  const auto* found =
      find_attribute<std::vector<std::string>>(*this, attribute, "a list of strings");
  return found ? *found : std::vector<std::string>{};
}

TensorPtr Node::tensor(std::string_view attribute) const {
  const auto* found = find_attribute<TensorPtr>(*this, attribute, "a tensor");
  return found ? *found : nullptr;
}

std::string Graph::free_name(std::string wanted) const {
  if (!wanted.empty() && by_name_.count(wanted) == 0) return wanted;
  // The value count only grows, so most first guesses are free.
  for (size_t suffix = values_.size();; ++suffix) {
    std::string candidate =
        wanted.empty() ? fmt::format("v{}", suffix) : fmt::format("{}.{}", wanted, suffix);
    if (by_name_.count(candidate) == 0) return candidate;
  }
}

ValueId Graph::add_value(Value value) {
  value.name = free_name(std::move(value.name));
  const auto id = static_cast<ValueId>(values_.size());
  by_name_.emplace(value.name, id);
  values_.push_back(std::move(value));
  return id;
}

ValueId Graph::add_constant(std::string name, TensorPtr tensor) {
  Value value;
  value.name = std::move(name);
  value.dtype = tensor->dtype;
  value.shape = make_shape(tensor->dims);
  value.constant = std::move(tensor);
  return add_value(std::move(value));
}

ValueId Graph::add_input(Value value) {
  const ValueId id = add_value(std::move(value));
  inputs_.push_back(id);
  return id;
}

void Graph::set_producer(NodeId id) {
  for (ValueId output : nodes_[id].outputs) {
    if (output != kNoValue) value(output).producer = id;
  }
}

NodeId Graph::add_node(Node node) {
  const auto id = static_cast<NodeId>(nodes_.size());
  nodes_.push_back(std::move(node));
  order_.push_back(id);
  set_producer(id);
  return id;
}

NodeId Graph::insert_before(NodeId position, Node node) {
  const auto place = std::find(order_.begin(), order_.end(), position);
  if (place == order_.end()) throw InternalError("insert_before: the position is not a live node");
  const auto id = static_cast<NodeId>(nodes_.size());
  order_.insert(place, id);
  nodes_.push_back(std::move(node));
  set_producer(id);
  return id;
}

bool Graph::is_output(ValueId id) const {
  return std::find(outputs_.begin(), outputs_.end(), id) != outputs_.end();
}

bool Graph::is_input(ValueId id) const {
  return std::find(inputs_.begin(), inputs_.end(), id) != inputs_.end();
}

namespace {

// Whether `asked` says nothing that `known` has not said.
bool implies(const Requirement& known, const Requirement& asked) {
  const bool is_same = known.left == asked.left && known.right == asked.right;
  if (known.relation == asked.relation && is_same) return true;
  const bool is_turned = known.left == asked.right && known.right == asked.left;
  if (known.relation == Relation::kAtMost && asked.relation == Relation::kAtMost) {
    const Dim slack = (asked.right - asked.left) - (known.right - known.left);
    return slack.is_constant() && slack.value() >= 0;
  }
  if (known.relation == Relation::kEqual) {
    return (is_same || is_turned) && asked.relation != Relation::kDivides;
  }
  if (asked.relation != Relation::kEqual || known.relation != Relation::kDivides) return false;
  // A view of [n] as [n/3, 3] keeps the elements where 3 divides n.
  const Dim whole = known.left * floor_div(known.right, known.left);
  return (asked.left == known.right && asked.right == whole) ||
         (asked.right == known.right && asked.left == whole);
}

}  // namespace

void Graph::require(Requirement requirement) {
  for (Requirement& known : requirements_) {
    if (!implies(known, requirement)) continue;
    known.sources = merge_sources(known.sources, requirement.sources);
    return;
  }
  requirements_.push_back(std::move(requirement));
}

void Graph::drop_requirements(const std::function<bool(const Requirement&)>& which) {
  std::erase_if(requirements_, which);
}

const Node* Graph::producer(ValueId id) const {
  if (id == kNoValue || value(id).producer == kNoNode) return nullptr;
  return &node(value(id).producer);
}

std::vector<NodeId> Graph::consumers(ValueId id) const {
  std::vector<NodeId> result;
  for (NodeId candidate : order_) {
    const auto& inputs = nodes_[candidate].inputs;
    if (std::find(inputs.begin(), inputs.end(), id) != inputs.end()) result.push_back(candidate);
  }
  return result;
}

bool Graph::has_one_use(ValueId id) const {
  int64_t uses = std::count(outputs_.begin(), outputs_.end(), id);
  if (uses != 0) return false;
  for (NodeId candidate : order_) {
    const auto& inputs = nodes_[candidate].inputs;
    uses += std::count(inputs.begin(), inputs.end(), id);
    if (uses > 1) return false;
  }
  return uses == 1;
}

ValueId Graph::find(std::string_view name) const {
  auto found = by_name_.find(std::string(name));
  return found == by_name_.end() ? kNoValue : found->second;
}

void Graph::rename(ValueId id, std::string name) {
  Value& renamed = value(id);
  if (renamed.name == name) return;
  by_name_.erase(renamed.name);
  renamed.name = free_name(std::move(name));
  by_name_.emplace(renamed.name, id);
}

void Graph::replace_uses(ValueId from, ValueId to) {
  if (from == to) return;
  for (NodeId id : order_) {
    std::replace(nodes_[id].inputs.begin(), nodes_[id].inputs.end(), from, to);
  }
  if (!is_output(from)) return;
  const bool name_moves = value(to).producer != kNoNode && !is_output(to);
  std::replace(outputs_.begin(), outputs_.end(), from, to);
  if (!name_moves) return;
  std::swap(value(from).name, value(to).name);
  by_name_[value(from).name] = from;
  by_name_[value(to).name] = to;
}

void Graph::remove_node(NodeId id) {
  for (ValueId output : node(id).outputs) {
    if (output == kNoValue) continue;
    if (is_output(output) || !consumers(output).empty()) {
      throw InternalError(fmt::format("remove_node: '{}' of node '{}' ({}) is still used",
                                      value(output).name, node(id).name, node(id).op));
    }
    value(output).producer = kNoNode;
  }
  order_.erase(std::remove(order_.begin(), order_.end(), id), order_.end());
}

int Graph::remove_dead_nodes() {
  std::vector<char> used(values_.size(), 0);
  for (ValueId output : outputs_) used[output] = 1;
  std::vector<NodeId> kept;
  for (auto place = order_.rbegin(); place != order_.rend(); ++place) {
    const Node& candidate = nodes_[*place];
    // Other ranks wait for a collective, whoever reads its result.
    const bool live = is_collective(candidate) || is_imported_collective(candidate) ||
                      std::any_of(candidate.outputs.begin(), candidate.outputs.end(),
                                  [&](ValueId id) { return id != kNoValue && used[id]; });
    if (!live) {
      for (ValueId output : candidate.outputs) {
        if (output != kNoValue) value(output).producer = kNoNode;
      }
      continue;
    }
    for (ValueId input : candidate.inputs) {
      if (input != kNoValue) used[input] = 1;
    }
    kept.push_back(*place);
  }
  const auto removed = static_cast<int>(order_.size() - kept.size());
  std::reverse(kept.begin(), kept.end());
  order_ = std::move(kept);
  return removed;
}

void Graph::sort_topologically() {
  std::vector<size_t> position(nodes_.size(), 0);
  for (size_t i = 0; i < order_.size(); ++i) position[order_[i]] = i;
  const auto stands_behind = [&](NodeId id) {
    return std::ranges::all_of(nodes_[id].inputs, [&](ValueId input) {
      const NodeId producer = input == kNoValue ? kNoNode : value(input).producer;
      return producer == kNoNode || position[producer] < position[id];
    });
  };
  if (std::ranges::all_of(order_, stands_behind)) return;
  // Kahn's algorithm that always takes the ready node that stood first, so that what is sorted
  // already would stay put.
  std::vector<std::vector<size_t>> followers(order_.size());
  std::vector<int> waits(order_.size(), 0);
  for (size_t i = 0; i < order_.size(); ++i) {
    for (ValueId input : nodes_[order_[i]].inputs) {
      if (input == kNoValue || value(input).producer == kNoNode) continue;
      followers[position[value(input).producer]].push_back(i);
      ++waits[i];
    }
  }
  std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i] == 0) ready.push(i);
  }
  std::vector<NodeId> sorted;
  while (!ready.empty()) {
    const size_t next = ready.top();
    ready.pop();
    sorted.push_back(order_[next]);
    for (size_t follower : followers[next]) {
      if (--waits[follower] == 0) ready.push(follower);
    }
  }
  if (sorted.size() != order_.size()) {
    throw InternalError(fmt::format("graph '{}' has a cycle", name));
  }
  order_ = std::move(sorted);
}

std::vector<int> merge_sources(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> merged;
  merged.reserve(a.size() + b.size());
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(merged));
  return merged;
}

}  // namespace tenon::ir
