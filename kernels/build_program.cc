#include "kernels/build_program.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/error.h"
#include "base/file_pages.h"
#include "base/stopwatch.h"
#include "codegen/pdl.h"
#include "codegen/tile/op_info.h"
#include "codegen/tile/text.h"
#include "graph_partitioner/ir/fusions.h"
#include "kernels/compile_launches.h"
#include "kernels/launch_report.h"
#include "kernels/planning/views.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

Dim storage_bytes_of(const ir::Value& value) {
  return ceil_div(element_count(*value.shape) * Dim(bit_width(value.dtype)), Dim(8));
}

std::string display_name(const ir::Graph& graph, const ir::Node& node) {
  if (!node.name.empty()) return node.name;
  for (ir::ValueId output : node.outputs) {
    if (output != ir::kNoValue) return graph.value(output).name;
  }
  return node.op;
}

std::string problem_text(const ir::Graph& graph, const ir::Node& node) {
  const auto list = [&](const std::vector<ir::ValueId>& values) {
    std::string joined;
    for (ir::ValueId id : values) {
      if (!joined.empty()) joined += ", ";
      if (id == ir::kNoValue) {
        joined += "-";
        continue;
      }
      const ir::Value& value = graph.value(id);
      joined += fmt::format("{}{}", name(value.dtype), value.shape ? text(*value.shape) : "[?]");
    }
    return joined;
  };
  return fmt::format("({}) -> ({})", list(node.inputs), list(node.outputs));
}

// Buffers that fetches read.
void collect_fetched(const codegen::Region& region, std::set<codegen::ValueId>& buffers) {
  for (const codegen::Operation& operation : region.operations) {
    if (const codegen::OpInfo& known = codegen::info(operation.op); known.fetches) {
      codegen::for_each_buffer(operation, known.reads,
                               [&](codegen::ValueId id) { buffers.insert(id); });
    }
    for (const codegen::Region& inner : operation.regions) collect_fetched(inner, buffers);
  }
}

class ProgramBuilder {
 public:
  ProgramBuilder(const ir::Graph& graph, const Settings& settings)
      : graph_(graph), settings_(settings), program_(graph) {}

  Program build(const codegen::StageSink& sink) {
    const Stopwatch lowering;
    require_known_sizes();
    for (const ir::Requirement& required : graph_.requirements()) add_size_check(required);
    join_views();
    place_outputs();
    find_caches();
    for (ir::NodeId id : launch_order()) add_node(graph_.node(id));
    copy_shared_outputs();
    program_.phases.push_back({"lowering", lowering.milliseconds()});
    const Stopwatch compiling;
    if (on_gpu()) {
      compile_gpu_launches(std::move(kernels_), *settings_.gpu, sink, program_);
      check_dependencies(sink);
    } else if (settings_.emulate) {
      interpret_launches(std::move(kernels_), sink, program_);
    } else {
      compile_launches(std::move(kernels_), settings_.host, sink, program_);
    }
    program_.phases.push_back({"compiling", compiling.milliseconds()});
    return std::move(program_);
  }

 private:
  // Slots of what a candidate made, by the index that its launches use.
  struct Places {
    std::vector<size_t> packed, scratch, counters;
  };

  void check_dependencies(const codegen::StageSink& sink) {
    LaunchDependencies& dependencies = program_.dependencies;
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      dependencies.rename(i, program_.kernels[program_.launches[i].gpu_code].name);
    }
    if (sink) sink("program", "launch_dependencies", dependencies.text(program_.slots));
    if (const Support safe = dependencies.verify(program_.slots); !safe) {
      throw InternalError(safe.reason);
    }
  }

  bool on_gpu() const { return settings_.gpu && !settings_.emulate; }
  bool on_host() const { return !settings_.gpu && !settings_.emulate; }

  void require_known_sizes() {
    for (ir::ValueId id : graph_.inputs()) {
      program_.inputs.push_back({graph_.value(id).name, graph_.value(id).shape});
    }
    for (ir::ValueId id : graph_.outputs()) {
      const ir::Value& value = graph_.value(id);
      if (!value.shape) {
        throw UserError(fmt::format("the rank of output '{}' is not known", value.name));
      }
      program_.outputs.push_back(*value.shape);
    }
  }

  void add_size_check(const ir::Requirement& required) {
    for (const Dim* side : {&required.left, &required.right}) {
      if (const Support bound = program_.binding.covers(*side); !bound) {
        throw UserError(fmt::format("node '{}': {}", required.node, bound.reason));
      }
    }
    const auto is_it = [&](const ir::Requirement& known) {
      return known.relation == required.relation && known.left == required.left &&
             known.right == required.right;
    };
    if (std::ranges::none_of(program_.size_checks, is_it)) {
      program_.size_checks.push_back(required);
    }
  }

  // Values that are the same bytes get one root: the value that owns them.
  void join_views() {
    root_.resize(graph_.value_count());
    for (size_t id = 0; id < root_.size(); ++id) root_[id] = static_cast<ir::ValueId>(id);
    for (ir::NodeId id : graph_.order()) {
      const ir::Node& node = graph_.node(id);
      if (is_view(node)) root_[node.output(0)] = root_[node.input(0)];
      if (is_product(node)) multiplied_.insert(root_[node.input(0)]);
      if (node.op != ir::kAttention) continue;
      const ir::ValueId lengths = ir::Attention::from(node).kv_lengths;
      if (lengths != ir::kNoValue) lengths_.insert(root_[lengths]);
    }
  }

  // Nobody begins before a loop that makes lengths of caches has ended. Where it needs only what
  // the caller brings it comes first: elsewhere it would keep products from fetching weights ahead.
  std::vector<ir::NodeId> launch_order() const {
    std::vector<ir::NodeId> order = graph_.order();
    const auto makes_lengths = [&](ir::NodeId id) {
      const ir::Node& node = graph_.node(id);
      return on_gpu() && node.op == ir::kLoop &&
             std::ranges::any_of(node.outputs,
                                 [&](ir::ValueId out) { return lengths_.contains(out); }) &&
             std::ranges::all_of(node.inputs, [&](ir::ValueId in) {
               return in == ir::kNoValue || graph_.value(in).is_constant() ||
                      caller_brings(graph_, in);
             });
    };
    std::ranges::stable_partition(order, makes_lengths);
    return order;
  }

  // A computed value that leaves the graph is computed right into the caller's buffer.
  void place_outputs() {
    slot_of_.assign(graph_.value_count(), kUnplaced);
    for (size_t index = 0; index < graph_.inputs().size(); ++index) {
      const ir::ValueId input = graph_.inputs()[index];
      slot_of_[input] =
          add_slot({Slot::Kind::kInput, index, {}, 0, 0, 0, graph_.value(input).name});
    }
    for (size_t index = 0; index < graph_.outputs().size(); ++index) {
      const size_t slot = add_slot(
          {Slot::Kind::kOutput, index, {}, 0, 0, 0, graph_.value(graph_.outputs()[index]).name});
      program_.output_slots.push_back(slot);
      const ir::ValueId root = root_[graph_.outputs()[index]];
      if (graph_.producer(root) != nullptr && slot_of_[root] == kUnplaced) slot_of_[root] = slot;
    }
  }

  // Caches of the caller's, who may bind what they become to the same memory.
  void find_caches() {
    const auto is_placed = [&](ir::ValueId id, Slot::Kind kind) {
      if (id == ir::kNoValue || slot_of_[root_[id]] == kUnplaced) return false;
      return program_.slots[slot_of_[root_[id]]].kind == kind;
    };
    for (const ir::NodeId id : graph_.order()) {
      const ir::Node& node = graph_.node(id);
      if (node.op != ir::kAttention) continue;
      const ir::Attention attention = ir::Attention::from(node);
      for (const auto& [past, output] : {std::pair{attention.past_k, 1u}, {attention.past_v, 2u}}) {
        if (!is_placed(past, Slot::Kind::kInput)) continue;
        const ir::ValueId present =
            output < node.outputs.size() ? node.outputs[output] : ir::kNoValue;
        const bool leaves = is_placed(present, Slot::Kind::kOutput);
        program_.dependencies.add_cache(slot_of(past), slot_of(leaves ? present : past));
      }
    }
  }

  void copy_shared_outputs() {
    for (size_t index = 0; index < graph_.outputs().size(); ++index) {
      const ir::ValueId output = graph_.outputs()[index];
      const size_t from = slot_of(output), to = program_.output_slots[index];
      if (from == to) continue;
      program_.output_copies.push_back({from, to, storage_bytes_of(graph_.value(output))});
      touch(from);
    }
  }

  void add_node(const ir::Node& node) {
    if (is_view(node)) return;
    if (is_shape_value(node)) return add_shape_value(node);
    Choice choice = select(graph_, node, settings_);
    const std::string shown = display_name(graph_, node);
    if (!choice.ok()) {
      throw UserError(fmt::format("node '{}' ({}): {}", shown, node.op, choice.reason()));
    }
    program_.fusions.push_back({shown, node.op, problem_text(graph_, node), node.sources,
                                choice.chosen(), std::move(choice.verdicts)});
    count_constants(node);
    program_.dependencies.begin_node();
    for (const PartChoice& part : choice.parts) add_part(node, part, shown);
  }

  // A Run gives tasks to the part whose rows it brings.
  void add_part(const ir::Node& node, const PartChoice& part, const std::string& shown) {
    Lowered lowered = part.plan.lower();
    if (!part.rows.is_all()) {
      const Dim wanted = part.rows.contains(part.plan.rows);
      for (Launch& launch : lowered.launches) launch.tasks = launch.tasks * wanted;
    }
    FusionReport& fusion = program_.fusions.back();
    std::ranges::move(lowered.configs, std::back_inserter(fusion.configs));
    std::vector<LaunchReport> reports;
    if (on_host()) reports = describe_launches(lowered, program_.binding, settings_.host);

    Places places = place(lowered, shown);
    for (const SizeCheck& check : lowered.sizes) {
      add_size_check({check.left, check.relation, check.right, shown, {}});
    }
    const bool makes_rows = makes_rows_of_products(node);
    const bool is_pipelined = on_gpu() && std::ranges::any_of(lowered.launches, fetches);
    for (size_t i = 0; i < lowered.launches.size(); ++i) {
      Launch& launch = lowered.launches[i];
      // The norms of a pipelined product make rows for it alone.
      launch.kernel.pdl = makes_rows || (is_pipelined && is_product(node) && !fetches(launch));
      if (was_done(launch, places)) continue;
      add_launch(launch, shown, places);
      if (on_host()) fusion.launches.push_back(std::move(reports[i]));
    }
  }

  // On the host, a launch that only turns values into scratch is not done again for the next node:
  // products of one input share its rows in int8. True if there was one; `places` names its
  // scratch.
  bool was_done(const Launch& launch, Places& places) {
    if (settings_.gpu) return false;
    const auto touches = codegen::pdl_of(launch.kernel).parameters;
    std::vector<int32_t> written;
    std::string reads;
    bool only_makes_scratch = launch.checks.empty() && !launch.elidable_copy;
    auto argument = launch.buffers.begin();
    for (size_t i = 0; i < touches.size(); ++i) {
      if (launch.kernel.parameters[i].type.kind != codegen::Type::Kind::kBuffer) continue;
      const BufferArgument buffer = *argument++;
      const size_t slot = slot_of(buffer, places);
      if (touches[i].written) {
        std::erase_if(done_,
                      [&](const auto& done) { return std::ranges::count(done.second, slot); });
      }
      if (touches[i].written && !touches[i].read && buffer.kind == BufferArgument::Kind::kScratch) {
        written.push_back(buffer.id);
        reads += fmt::format(" {}", program_.slots[slot].bytes.text());
      } else if (!touches[i].written && buffer.kind == BufferArgument::Kind::kValue &&
                 program_.slots[slot].kind == Slot::Kind::kArena) {
        reads += fmt::format(" %{}", slot);
      } else {
        only_makes_scratch = false;
      }
    }
    if (!only_makes_scratch || written.empty()) return false;
    for (const Dim& index : launch.indices) reads += " " + index.text();
    std::vector<size_t> slots;
    for (const int32_t id : written) slots.push_back(places.scratch.at(id));
    const auto [done, is_new] = done_.try_emplace(
        fmt::format("{} {}{}", codegen::print(launch.kernel), launch.tasks.text(), reads), slots);
    if (is_new) return false;
    for (size_t i = 0; i < written.size(); ++i) {
      program_.slots[slots[i]].bytes = 0;
      places.scratch[written[i]] = done->second[i];
    }
    return true;
  }

  // Products behind such a loop fetch their weights while it runs, if they may begin by then.
  // Other loops make lengths and positions, which who comes behind them reads without waiting.
  bool makes_rows_of_products(const ir::Node& node) const {
    if (!on_gpu() || node.op != ir::kLoop) return false;
    return std::ranges::any_of(node.outputs, [&](ir::ValueId id) {
      return id != ir::kNoValue && multiplied_.contains(root_.at(id));
    });
  }

  static bool is_product(const ir::Node& node) {
    return node.op == ir::kScaledDot || node.op == ir::kMergedDots;
  }

  static bool fetches(const Launch& launch) {
    std::set<codegen::ValueId> fetched;
    collect_fetched(launch.kernel.body, fetched);
    return !fetched.empty();
  }

  Places place(Lowered& lowered, const std::string& node) {
    Places places;
    for (PackedConstant& constant : lowered.packed) {
      places.packed.push_back(add_packed(constant, node));
    }
    leave_sources(lowered, places);
    for (const Scratch& scratch : lowered.scratch) {
      Slot slot{Slot::Kind::kArena,
                0,
                {},
                scratch.bytes,
                next_launch(),
                next_launch(),
                fmt::format("scratch {} of {}", places.scratch.size(), node)};
      if (scratch.own) {
        slot.own = true;
        slot.first = 0;
        slot.last = std::numeric_limits<int>::max();
      }
      places.scratch.push_back(add_slot(std::move(slot)));
    }
    for (const Dim& count : lowered.counters) {
      places.counters.push_back(
          add_slot({Slot::Kind::kCounters,
                    0,
                    {},
                    count * Dim(sizeof(int32_t)),
                    0,
                    0,
                    fmt::format("counters {} of {}", places.counters.size(), node)}));
    }
    return places;
  }

  size_t add_packed(PackedConstant& constant, const std::string& node) {
    program_.packed_bytes += constant.bytes;
    Slot slot{
        Slot::Kind::kConstant, 0, constant.data, static_cast<int64_t>(constant.bytes), 0, 0, node};
    if (constant.data == nullptr && on_gpu()) {
      slot.pack = std::move(constant.pack);
      slot.unit = constant.unit;
    } else if (constant.data == nullptr) {
      slot.data = pack_whole(constant.bytes, constant.pack, constant.unit);
    }
    return add_slot(std::move(slot));
  }

  // A weight that was packed need not lie in memory a second time. For a GPU it is packed later.
  void leave_sources(const Lowered& lowered, const Places& places) {
    Slot* last_packed_later = nullptr;
    for (const size_t slot : places.packed) {
      if (program_.slots[slot].pack != nullptr) last_packed_later = &program_.slots[slot];
    }
    for (const ir::ValueId id : lowered.replaced_constants) {
      const ir::TensorPtr& tensor = graph_.value(id).constant;
      if (tensor == nullptr) continue;
      const std::span<const std::byte> bytes{tensor->data, tensor->bytes};
      if (last_packed_later != nullptr) {
        last_packed_later->sources.push_back(bytes);
      } else {
        release_file_pages(bytes);
      }
    }
  }

  size_t slot_of(const BufferArgument& argument, const Places& places) {
    switch (argument.kind) {
      case BufferArgument::Kind::kValue:
        return slot_of(argument.id);
      case BufferArgument::Kind::kPacked:
        return places.packed.at(argument.id);
      case BufferArgument::Kind::kScratch:
        return places.scratch.at(argument.id);
      case BufferArgument::Kind::kCounters:
        return places.counters.at(argument.id);
    }
    throw InternalError("an argument of no kind");
  }

  void add_launch(Launch& launch, const std::string& node, const Places& places) {
    CompiledLaunch compiled;
    compiled.node = node;
    compiled.indices = std::move(launch.indices);
    compiled.tasks = launch.tasks;
    compiled.task_cost = launch.task_cost;
    compiled.threads = launch.threads;
    compiled.shared_bytes = launch.shared_bytes;
    for (const codegen::Parameter& parameter : launch.kernel.parameters) {
      compiled.is_buffer.push_back(parameter.type.kind == codegen::Type::Kind::kBuffer);
    }
    compiled.fetched = fetched_values(launch);
    if (on_gpu()) mark_constants(launch);
    for (const BufferArgument& argument : launch.buffers) {
      const size_t slot = slot_of(argument, places);
      touch(slot);
      compiled.slots.push_back(slot);
    }
    describe_memory(launch, compiled);
    if (on_gpu()) program_.dependencies.add(launch.kernel, node, compiled.slots, *settings_.gpu);
    for (const IndexCheck& check : launch.checks) {
      if (!is_first_check(check)) continue;
      const ir::Value& value = graph_.value(check.value);
      const size_t slot = slot_of(check.value);
      touch(slot);
      if (on_gpu()) program_.dependencies.add_watched(slot);
      compiled.checks.push_back({slot, value.dtype, element_count(*value.shape), check});
      std::string& reader = compiled.checks.back().check.node;
      if (reader.empty()) reader = compiled.node;
    }
    if (launch.elidable_copy) {
      const auto [from, to] = *launch.elidable_copy;
      compiled.elidable_copy =
          SharedBuffers{slot_of(from), slot_of(to), storage_bytes_of(graph_.value(from)),
                        storage_bytes_of(graph_.value(to))};
    }
    kernels_.push_back(std::move(launch.kernel));
    program_.launches.push_back(std::move(compiled));
  }

  // Values do not change: what one launch has checked, those behind it need not check again.
  bool is_first_check(const IndexCheck& check) {
    return checked_
        .emplace(root_.at(check.value), check.bound.text(), check.first, check.step, check.from_end,
                 check.least)
        .second;
  }

  // What no launch writes need not be waited for: constants, and what the caller brings, which is
  // there before the first launch. Caches may be written in place: only pipelines, which know
  // what is new in them, read those before the wait.
  void mark_constants(Launch& launch) {
    std::set<codegen::ValueId> fetched;
    collect_fetched(launch.kernel.body, fetched);
    for_values(launch, [&](size_t parameter, ir::ValueId id) {
      const LaunchDependencies& dependencies = program_.dependencies;
      const size_t slot = slot_of(id);
      const Slot::Kind kind = program_.slots[slot].kind;
      const bool brought = settings_.tuning.reads_inputs_before_wait &&
                           kind == Slot::Kind::kInput &&
                           (fetched.contains(static_cast<codegen::ValueId>(parameter)) ||
                            !dependencies.is_cache(slot));
      if (brought || kind == Slot::Kind::kConstant || dependencies.is_readable_before_wait(slot)) {
        launch.kernel.parameters[parameter].constant = true;
      }
    });
  }

  // Whose memory each buffer is. What the executable places begins at multiples of 16 bytes.
  void describe_memory(Launch& launch, const CompiledLaunch& compiled) const {
    using Kind = Slot::Kind;
    auto slot = compiled.slots.begin();
    for (codegen::Parameter& parameter : launch.kernel.parameters) {
      if (parameter.type.kind != codegen::Type::Kind::kBuffer) continue;
      const Slot& described = program_.slots[*slot++];
      parameter.own = described.own || described.kind == Kind::kCounters;
      parameter.aligned =
          on_gpu() && described.kind != Kind::kInput && described.kind != Kind::kOutput;
    }
  }

  std::vector<FetchedBuffer> fetched_values(const Launch& launch) const {
    std::set<codegen::ValueId> fetched;
    collect_fetched(launch.kernel.body, fetched);
    std::vector<FetchedBuffer> values;
    for_values(launch, [&](size_t parameter, ir::ValueId id) {
      if (!fetched.contains(static_cast<codegen::ValueId>(parameter))) return;
      values.push_back({parameter, storage_bytes_of(graph_.value(id))});
    });
    return values;
  }

  // visit(number of the parameter, value)
  template <typename Visit>
  static void for_values(const Launch& launch, const Visit& visit) {
    auto argument = launch.buffers.begin();
    for (size_t i = 0; i < launch.kernel.parameters.size(); ++i) {
      if (launch.kernel.parameters[i].type.kind != codegen::Type::Kind::kBuffer) continue;
      const BufferArgument& buffer = *argument++;
      if (buffer.kind != BufferArgument::Kind::kValue) continue;
      visit(i, buffer.id);
    }
  }

  void add_shape_value(const ir::Node& node) {
    const ir::Value& value = graph_.value(node.output(0));
    ShapeWrite write;
    write.slot = slot_of(node.output(0));
    write.dtype = value.dtype;
    const auto found = node.attributes.find("dims");
    const auto* dims = found == node.attributes.end()
                           ? nullptr
                           : std::get_if<std::vector<std::string>>(&found->second);
    if (dims != nullptr) {
      for (const std::string& dim : *dims) write.elements.push_back(Dim::parse(dim));
    }
    program_.slots[write.slot].first = 0;
    program_.shape_writes.push_back(std::move(write));
  }

  void count_constants(const ir::Node& node) {
    for (ir::ValueId id : node.inputs) {
      if (id == ir::kNoValue || !graph_.value(id).is_constant()) continue;
      if (counted_.insert(id).second) program_.weight_bytes += graph_.value(id).constant->bytes;
    }
  }

  // The bytes of a constant outlive the model that brought them: kept where somebody owns them,
  // copied otherwise. For a GPU they are copied once, right to it.
  size_t keep_constant(const ir::Value& value) {
    const ir::Tensor& tensor = *value.constant;
    program_.packed_bytes += tensor.bytes;
    Slot slot{Slot::Kind::kConstant, 0, {}, static_cast<int64_t>(tensor.bytes), 0, 0, value.name};
    const PackPiece copy = [from = tensor.data](int64_t first, std::span<std::byte> out) {
      if (out.empty()) return;
      std::memcpy(out.data(), from + first, out.size());
      release_file_pages({from + first, out.size()});
    };
    if (tensor.owner != nullptr) {
      slot.data = std::shared_ptr<const void>(value.constant, tensor.data);
    } else if (on_gpu()) {
      slot.pack = copy;
    } else {
      slot.data = pack_whole(tensor.bytes, copy, 1);
    }
    return add_slot(std::move(slot));
  }

  size_t slot_of(ir::ValueId id) {
    const ir::ValueId root = root_.at(id);
    if (slot_of_[root] != kUnplaced) return slot_of_[root];
    const ir::Value& value = graph_.value(root);
    if (value.is_constant()) return slot_of_[root] = keep_constant(value);
    if (!value.shape) {
      throw UserError(fmt::format("the rank of value '{}' is not known", value.name));
    }
    return slot_of_[root] = add_slot({Slot::Kind::kArena,
                                      0,
                                      {},
                                      storage_bytes_of(value),
                                      next_launch(),
                                      next_launch(),
                                      value.name});
  }

  // The launch being added (or what follows the last one) uses the slot.
  void touch(size_t slot) {
    int& last = program_.slots[slot].last;
    last = std::max(last, next_launch());
  }
  int next_launch() const { return static_cast<int>(program_.launches.size()); }
  size_t add_slot(Slot slot) {
    program_.slots.push_back(std::move(slot));
    return program_.slots.size() - 1;
  }

  static constexpr size_t kUnplaced = static_cast<size_t>(-1);
  const ir::Graph& graph_;
  const Settings& settings_;
  Program program_;
  std::vector<ir::ValueId> root_;
  std::vector<size_t> slot_of_;
  std::vector<codegen::Kernel> kernels_;             // one per launch
  std::map<std::string, std::vector<size_t>> done_;  // what such launches read: what they made
  std::set<ir::ValueId> counted_;
  std::set<ir::ValueId> multiplied_;  // rows of products
  std::set<ir::ValueId> lengths_;     // of caches
  std::set<std::tuple<ir::ValueId, std::string, int64_t, int64_t, bool, int64_t>> checked_;
};

}  // namespace

Program make_program(const ir::Graph& fused, const Settings& settings,
                     const codegen::StageSink& sink) {
  return ProgramBuilder(fused, settings).build(sink);
}

std::unique_ptr<Executable> build_on_host(const ir::Graph& fused, const Settings& settings,
                                          const codegen::StageSink& sink) {
  return run_on_host(make_program(fused, settings, sink), settings.host.threads);
}

std::unique_ptr<Executable> build_on_device(const ir::Graph& fused, const Settings& settings,
                                            std::shared_ptr<device::Device> device,
                                            const DeviceRunOptions& options,
                                            const codegen::StageSink& sink) {
  return run_on_device(make_program(fused, settings, sink), *settings.gpu, std::move(device),
                       options);
}

}  // namespace tenon::kernels
