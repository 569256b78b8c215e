#include "distributed/sharding/annotations.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/support.h"
#include "distributed/sharding/wire.h"

namespace tenon::distributed {
namespace {

using Bytes = std::span<const std::byte>;

// Messages of onnx.proto, as far as they matter here.
struct ShardedDim {
  int64_t axis = 0;
  std::vector<int64_t> shards;  // of each simple sharding
};

struct Spec {
  std::string tensor;
  std::vector<int64_t> devices;
  std::map<int64_t, std::vector<int64_t>> groups;
  std::vector<ShardedDim> dims;
};

struct FileNode {
  std::string name, op;
  std::vector<std::string> inputs, outputs;
  std::vector<Bytes> attributes, configurations;

  std::string shown() const {
    return name.empty() && !outputs.empty() ? fmt::format("{}({})", op, outputs[0]) : name;
  }
};

ShardedDim parse_dim(Bytes bytes) {
  ShardedDim dim;
  for (WireReader all(bytes); all.next();) {
    if (all.field() == 1) dim.axis = all.number();
    if (all.field() != 2) continue;
    dim.shards.push_back(1);
    for (WireReader simple(all.bytes()); simple.next();) {
      if (simple.field() == 3) dim.shards.back() = simple.number();
    }
  }
  return dim;
}

Spec parse_spec(Bytes bytes) {
  Spec spec;
  for (WireReader all(bytes); all.next();) {
    if (all.field() == 1) spec.tensor = all.text();
    if (all.field() == 2) all.add_numbers(spec.devices);
    if (all.field() == 4) spec.dims.push_back(parse_dim(all.bytes()));
    if (all.field() != 3) continue;
    int64_t key = 0;
    std::vector<int64_t> group;
    for (WireReader entry(all.bytes()); entry.next();) {
      if (entry.field() == 1) key = entry.number();
      if (entry.field() == 2) entry.add_numbers(group);
    }
    spec.groups[key] = std::move(group);
  }
  return spec;
}

FileNode parse_node(Bytes bytes) {
  FileNode node;
  for (WireReader all(bytes); all.next();) {
    if (all.field() == 1) node.inputs.push_back(all.text());
    if (all.field() == 2) node.outputs.push_back(all.text());
    if (all.field() == 3) node.name = all.text();
    if (all.field() == 4) node.op = all.text();
    if (all.field() == 5) node.attributes.push_back(all.bytes());
    if (all.field() == 10) node.configurations.push_back(all.bytes());
  }
  return node;
}

int64_t integer(const FileNode& node, std::string_view wanted) {
  for (const Bytes attribute : node.attributes) {
    std::string name;
    int64_t number = 0;
    for (WireReader all(attribute); all.next();) {
      if (all.field() == 1) name = all.text();
      if (all.field() == 3) number = all.number();
    }
    if (name == wanted) return number;
  }
  return 0;
}

std::vector<int64_t> members(const Spec& spec, int64_t device) {
  const auto group = spec.groups.find(device);
  return group == spec.groups.end() ? std::vector<int64_t>{device} : group->second;
}

// Every rank once; all of it belongs to each of them.
Support check_whole(const Spec& spec, int64_t ranks) {
  if (spec.devices.empty()) return Support::yes();
  std::set<int64_t> holders;
  for (const int64_t device : spec.devices) {
    const auto group = members(spec, device);
    holders.insert(group.begin(), group.end());
  }
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (holders.contains(rank)) continue;
    return Support::no(fmt::format("'{}' is on devices {}: every rank needs it", spec.tensor,
                                   fmt::join(holders, ", ")));
  }
  return Support::yes();
}

// Rank r has part r.
Support check_parts(const Spec& spec, int64_t shards, int64_t ranks) {
  if (shards != ranks) {
    return Support::no(
        fmt::format("'{}' is cut in {} for {} ranks: each has a part of its own, or all of it",
                    spec.tensor, shards, ranks));
  }
  if (!spec.devices.empty() && std::ssize(spec.devices) != ranks) {
    return Support::no(fmt::format("'{}' is cut in {} and on {} devices", spec.tensor, shards,
                                   spec.devices.size()));
  }
  for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
    if (members(spec, spec.devices[rank]) == std::vector{static_cast<int64_t>(rank)}) continue;
    return Support::no(
        fmt::format("part {} of '{}' is not on device {}: ranks have parts in their order", rank,
                    spec.tensor, rank));
  }
  return Support::yes();
}

Support check(const Spec& spec, int64_t ranks, CutDims& cut) {
  int64_t parts = 1;
  for (const auto& [axis, shards] : spec.dims) {
    if (std::ranges::all_of(shards, [](int64_t count) { return count == 1; })) continue;
    if (shards.size() > 1) {
      return Support::no(fmt::format("dim {} of '{}' is cut within itself", axis, spec.tensor));
    }
    cut.push_back(axis);
    parts = shards[0];
  }
  if (cut.size() > 1) {
    return Support::no(fmt::format("'{}' is cut along {} dims", spec.tensor, cut.size()));
  }
  return cut.empty() ? check_whole(spec, ranks) : check_parts(spec, parts, ranks);
}

class Reader {
 public:
  Reader(Bytes model, int64_t ranks) : ranks_(ranks) {
    for (WireReader all(model); all.next();) {
      if (all.field() == 7) read_graph(all.bytes());
      if (all.field() == 26) read_configuration(all.bytes());
    }
  }

  Annotations run() {
    if (!choose_configuration()) return std::move(result_);
    for (const FileNode& node : nodes_) {
      for (const Bytes bytes : node.configurations) read_node(node, bytes);
    }
    for (const auto& [op, count] : other_ops_) {
      result_.unfollowed.push_back({fmt::format("{} nodes {}", count, op),
                                    "specs of products and of tables are followed; what stands "
                                    "between them goes with them"});
    }
    return std::move(result_);
  }

 private:
  void read_graph(Bytes bytes) {
    for (WireReader all(bytes); all.next();) {
      if (all.field() == 1) nodes_.push_back(parse_node(all.bytes()));
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (const std::string& output : nodes_[i].outputs) producers_[output] = i;
    }
  }

  void read_configuration(Bytes bytes) {
    std::string name;
    int64_t devices = 0;
    for (WireReader all(bytes); all.next();) {
      if (all.field() == 1) name = all.text();
      if (all.field() == 2) devices = all.number();
    }
    configurations_.emplace_back(std::move(name), devices);
  }

  bool choose_configuration() {
    if (configurations_.empty()) {
      const auto names_one = [](const FileNode& node) { return !node.configurations.empty(); };
      if (std::ranges::any_of(nodes_, names_one)) {
        result_.unfollowed.push_back(
            {"device configurations", "nodes name some, the file has none"});
      }
      return false;
    }
    std::vector<int64_t> sizes;
    for (const auto& [name, devices] : configurations_) {
      sizes.push_back(devices);
      if (devices != ranks_) continue;
      chosen_ = name;
      return true;
    }
    result_.unfollowed.push_back(
        {"device configurations", fmt::format("the file has them for {} devices, not for {} ranks",
                                              fmt::join(sizes, " and "), ranks_)});
    return false;
  }

  void read_node(const FileNode& node, Bytes bytes) {
    std::string id;
    std::vector<Spec> specs;
    bool has_stage = false;
    for (WireReader all(bytes); all.next();) {
      if (all.field() == 1) id = all.text();
      if (all.field() == 2) specs.push_back(parse_spec(all.bytes()));
      if (all.field() == 3) has_stage = true;
    }
    if (id != chosen_) return;
    if (has_stage) {
      result_.unfollowed.push_back({node.shown(), "ranks work in one stage, not in a pipeline"});
    }
    if (!specs.empty()) read_specs(node, specs);
  }

  // Which of its inputs is the weight.
  static std::optional<size_t> weight_input(const FileNode& node) {
    if (node.op == "MatMul" || node.op == "Gemm" || node.op == "MatMulNBits") return 1;
    if (node.op == "Gather") return 0;
    return std::nullopt;
  }

  void read_specs(const FileNode& node, const std::vector<Spec>& specs) {
    const auto weight = weight_input(node);
    if (!weight || node.inputs.size() < 2 || node.outputs.empty()) {
      ++other_ops_[node.op];
      return;
    }
    Annotation annotation;
    annotation.node = node.shown();
    annotation.is_table = node.op == "Gather";
    annotation.weights = names_of(node.inputs[*weight]);
    for (const Spec& spec : specs) {
      CutDims cut;
      Support answer = check(spec, ranks_, cut);
      if (answer) answer = put(node, *weight, spec.tensor, std::move(cut), annotation);
      if (!answer) result_.unfollowed.push_back({node.shown(), answer.reason});
    }
    if (annotation.left || annotation.weight || annotation.result) {
      result_.nodes.push_back(std::move(annotation));
    }
  }

  // Back to the file's own bytes.
  std::vector<std::string> names_of(std::string tensor) const {
    static const std::set<std::string> kKeepBytes{"DequantizeLinear", "Cast", "Transpose",
                                                  "Identity"};
    std::vector<std::string> names{tensor};
    for (auto at = producers_.find(tensor); at != producers_.end(); at = producers_.find(tensor)) {
      const FileNode& producer = nodes_[at->second];
      const bool is_known = kKeepBytes.contains(producer.op) && !producer.inputs.empty();
      if (!is_known || names.size() > nodes_.size()) break;
      tensor = producer.inputs[0];
      names.push_back(tensor);
    }
    return names;
  }

  static Support put(const FileNode& node, size_t weight, const std::string& tensor, CutDims cut,
                     Annotation& to) {
    if (tensor == node.outputs[0]) {
      to.result = std::move(cut);
    } else if (tensor == node.inputs[weight]) {
      if (!to.is_table && !count_as_product(node, cut)) {
        return Support::no(fmt::format("'{}' has no such dim to be cut along", tensor));
      }
      to.weight = std::move(cut);
    } else if (tensor == node.inputs[1 - weight]) {
      to.left = std::move(cut);
    } else {
      // A bias, or scales: they go with the weight.
      const bool reads = std::ranges::find(node.inputs, tensor) != node.inputs.end();
      if (!reads) return Support::no(fmt::format("it has no tensor '{}'", tensor));
    }
    return Support::yes();
  }

  // Dims of a weight as [K, N]. MatMulNBits has [N, blocks of K, bytes].
  static bool count_as_product(const FileNode& node, CutDims& cut) {
    const bool by_rows = node.op == "MatMulNBits";
    const bool swapped = by_rows || (node.op == "Gemm" && integer(node, "transB") != 0);
    for (int64_t& axis : cut) {
      if (axis < 0) axis += by_rows ? 3 : 2;
      if (axis < 0 || axis > 1) return false;
      if (swapped) axis = 1 - axis;
    }
    return true;
  }

  const int64_t ranks_;
  std::vector<FileNode> nodes_;
  std::map<std::string, size_t> producers_;
  std::vector<std::pair<std::string, int64_t>> configurations_;
  std::string chosen_;
  std::map<std::string, int64_t> other_ops_;
  Annotations result_;
};

}  // namespace

Annotations read_annotations(std::span<const std::byte> model, int64_t ranks) {
  return Reader(model, ranks).run();
}

}  // namespace tenon::distributed
