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
#include "base/thread_pool.h"
#include "codegen/pdl.h"
#include "codegen/tile/text.h"
#include "graph_partitioner/ir/collectives.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/ir/text.h"
#include "kernels/collective_overlap.h"
#include "kernels/compile_launches.h"
#include "kernels/launch_report.h"
#include "kernels/launch_values.h"
#include "kernels/node_text.h"
#include "kernels/planning/before_wait.h"
#include "kernels/planning/views.h"
#include "kernels/program_slots.h"
#include "kernels/selector.h"

namespace tenon::kernels {
namespace {

class ProgramBuilder {
 public:
  ProgramBuilder(const ir::Graph& graph, const Settings& settings)
      : graph_(graph),
        settings_(settings),
        program_(graph),
        slots_(graph, on_gpu(), program_),
        overlap_(graph, settings) {}

  Program build(const codegen::StageSink& sink) {
    if (settings_.keep_texts) print_graph();
    lower();
    if (settings_.keep_texts) program_.texts->lowering = lowering_of(kernels_, program_);
    compile(sink);
    return std::move(program_);
  }

  LoweredProgram build_lowered() {
    lower();
    const Digest content = lowering_of(kernels_, program_);
    return {std::move(program_.slots), content};
  }

 private:
  void print_graph() {
    program_.texts.emplace();
    ir::PrintOptions options;
    options.digests = &program_.texts->constants;
    program_.texts->graph = ir::print(graph_, options);
  }

  void lower() {
    const Stopwatch lowering;
    require_known_sizes();
    for (const ir::Requirement& required : graph_.requirements()) add_size_check(required);
    find_readers();
    find_caches();
    add_nodes(launch_order());
    copy_shared_outputs();
    overlap_.put_aside(program_);
    program_.phases.push_back({"lowering", lowering.milliseconds()});
  }

  void compile(const codegen::StageSink& sink) {
    const Stopwatch compiling;
    if (on_gpu()) {
      compile_gpu_launches(std::move(kernels_), *settings_.gpu, sink, settings_.kernel_cache.get(),
                           program_);
      check_dependencies(sink);
    } else if (settings_.emulate) {
      interpret_launches(std::move(kernels_), sink, program_);
    } else {
      compile_launches(std::move(kernels_), settings_.host, sink, program_);
    }
    program_.phases.push_back({"compiling", compiling.milliseconds()});
  }

  void check_dependencies(const codegen::StageSink& sink) {
    LaunchDependencies& dependencies = program_.dependencies;
    for (size_t i = 0; i < program_.launches.size(); ++i) {
      const CompiledLaunch& launch = program_.launches[i];
      if (launch.kind != LaunchKind::kKernel) continue;
      dependencies.rename(i, program_.kernels[launch.kernel].name);
    }
    if (sink) sink("program", "launch_dependencies", dependencies.text(program_.slots));
    if (const Support safe = dependencies.verify(program_.slots); !safe) {
      throw InternalError(safe.reason);
    }
  }

  bool on_gpu() const { return settings_.gpu && !settings_.emulate; }
  bool on_host() const { return !settings_.gpu && !settings_.emulate; }

  void require_known_sizes() {
    program_.inputs = inputs_of(graph_);
    for (ir::ValueId id : graph_.outputs()) {
      const ir::Value& value = graph_.value(id);
      if (!value.shape) {
        throw UserError(fmt::format("the rank of output '{}' is not known", value.name));
      }
      program_.outputs.push_back({*value.shape, value.dtype});
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

  // Whose results decide in which order launches come, and which of them overlap.
  void find_readers() {
    for (ir::NodeId id : graph_.order()) {
      const ir::Node& node = graph_.node(id);
      if (is_product(node)) multiplied_.insert(slots_.root(node.input(0)));
      if (node.op != ir::kAttention) continue;
      const ir::ValueId lengths = ir::Attention::from(node).kv_lengths;
      if (lengths != ir::kNoValue) lengths_.insert(slots_.root(lengths));
    }
  }

  // Nobody begins before a loop that makes lengths of caches has ended. Where it needs only what
  // the caller brings it comes first: elsewhere it would keep products from fetching weights ahead.
  struct LaunchOrder {
    std::vector<ir::NodeId> nodes;
    size_t fixed = 0;  // of them come first
  };
  LaunchOrder launch_order() const {
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
    const auto others = std::ranges::stable_partition(order, makes_lengths);
    const auto fixed = static_cast<size_t>(others.begin() - order.begin());
    return {std::move(order), fixed};
  }

  // Caches of the caller's, who may bind what they become to the same memory.
  void find_caches() {
    const auto is_placed = [&](ir::ValueId id, Slot::Kind kind) {
      return id != ir::kNoValue && slots_.is_placed(id) &&
             program_.slots[slots_.of(id)].kind == kind;
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
        program_.dependencies.add_cache(slots_.of(past), slots_.of(leaves ? present : past));
      }
    }
  }

  void copy_shared_outputs() {
    for (size_t index = 0; index < graph_.outputs().size(); ++index) {
      const ir::ValueId output = graph_.outputs()[index];
      const size_t from = slots_.of(output), to = program_.output_slots[index];
      if (from == to) continue;
      add_copy(from, to, storage_bytes_of(graph_.value(output)), graph_.value(output).name);
    }
  }

  void add_copy(size_t from, size_t to, Dim bytes, const std::string& name) {
    slots_.touch(from);
    slots_.touch(to);
    program_.dependencies.begin_node();
    CompiledLaunch copy;
    copy.kind = LaunchKind::kCopy;
    copy.copy_bytes = std::move(bytes);
    copy.is_buffer = {true, true};
    copy.slots = {from, to};
    copy.tasks = 1;
    copy.node = name;
    program_.dependencies.add_call("copy", name, copy.slots, {false, true},
                                   /*reads_written=*/false);
    program_.launches.push_back(std::move(copy));
  }

  // What a node becomes before it has a place in the program.
  struct PlannedNode {
    Choice choice;
    std::vector<Lowered> parts;
  };

  PlannedNode plan(const ir::Node& node) const {
    if (is_view(node) || is_shape_value(node)) return {};
    PlannedNode planned{select(graph_, node, settings_), {}};
    for (const PartChoice& part : planned.choice.parts) {
      planned.parts.push_back(part.plan.lower());
    }
    return planned;
  }

  // For a GPU weights are packed later, so that all nodes may be lowered at once. On the host the
  // file's pages of one weight go before the next one is packed.
  void add_nodes(const LaunchOrder& launched) {
    const std::vector<ir::NodeId>& order = launched.nodes;
    if (!on_gpu()) {
      for (const ir::NodeId id : order) add_node(graph_.node(id), plan(graph_.node(id)));
      return;
    }
    std::vector<PlannedNode> planned(order.size());
    parallel_for_each(static_cast<int64_t>(order.size()),
                      [&](int64_t i) { planned[i] = plan(graph_.node(order[i])); });
    std::vector<double> microseconds;
    for (const PlannedNode& node : planned) microseconds.push_back(node.choice.microseconds());
    for (const size_t i : overlap_.order(order, launched.fixed, microseconds)) {
      add_node(graph_.node(order[i]), std::move(planned[i]));
      overlap_.note_launches(graph_.node(order[i]), program_);
    }
  }

  void add_node(const ir::Node& node, PlannedNode planned) {
    if (is_view(node)) return;
    if (is_shape_value(node)) return add_shape_value(node);
    Choice& choice = planned.choice;
    const std::string shown = display_name(graph_, node);
    if (!choice.ok()) {
      throw UserError(fmt::format("node '{}' ({}): {}", shown, node.op, choice.reason()));
    }
    program_.fusions.push_back({shown, node.op, problem_text(graph_, node), node.sources,
                                choice.chosen(), std::move(choice.verdicts),
                                choice.microseconds()});
    program_.fusions.back().note = ir::is_collective(node) ? node.text("note", "") : "";
    count_constants(node);
    program_.dependencies.begin_node();
    for (size_t i = 0; i < choice.parts.size(); ++i) {
      add_part(node, choice.parts[i], std::move(planned.parts[i]), shown);
    }
    keep_tuning(choice, shown);
  }

  // A record whose kernel turned out not to fit a CTA has chosen nothing.
  void drop_unfit(Choice& choice) const {
    for (TuningNote& note : choice.tuning) {
      if (!note.used) continue;
      for (const ConfigChoice& config : program_.fusions.back().configs) {
        for (const ConfigChoice::Other& other : config.others) {
          if (other.dropped.empty() || other.kernel.config != note.ways.at(0).kernel.config)
            continue;
          note.used = false;
          note.text = fmt::format("{}: dropped, {}", note.ways[0].candidate, other.dropped);
          choice.untuned.push_back(note.rows);
        }
      }
    }
  }

  void keep_tuning(Choice& choice, const std::string& shown) {
    drop_unfit(choice);
    if (settings_.require_tuned && !choice.untuned.empty()) {
      const RowRange& rows = choice.untuned.front();
      const auto note = std::ranges::find_if(choice.tuning, [&](const TuningNote& each) {
        return !each.used && !each.rows.common_with(rows).is_empty();
      });
      throw UserError(
          fmt::format("require_tuned=1: node '{}' has no tuning record for {} of {}: {}", shown,
                      rows.text("rows"), choice.fusion,
                      note == choice.tuning.end() ? "no record" : note->text));
    }
    program_.fusions.back().fingerprint = choice.fingerprint;
    program_.fusions.back().tuning = std::move(choice.tuning);
    if (!program_.texts || choice.used_records.empty()) return;
    program_.texts->used_records.push_back(std::move(choice.used_records));
  }

  // A Run gives tasks to the part whose rows it brings.
  void add_part(const ir::Node& node, const PartChoice& part, Lowered lowered,
                const std::string& shown) {
    if (!part.rows.is_all()) {
      const Dim wanted = part.rows.contains(part.plan.rows);
      for (Launch& launch : lowered.launches) launch.tasks = launch.tasks * wanted;
    }
    FusionReport& fusion = program_.fusions.back();
    std::ranges::move(lowered.configs, std::back_inserter(fusion.configs));
    std::vector<LaunchReport> reports;
    if (on_host()) reports = describe_launches(lowered, program_.binding, settings_.host);

    SlotsOfLowered places = slots_.place(lowered, shown);
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
      if (launch.elidable_copy && !may_be_elided(node, *launch.elidable_copy)) {
        launch.elidable_copy.reset();
      }
      add_launch(launch, shown, places);
      if (on_host()) fusion.launches.push_back(std::move(reports[i]));
    }
  }

  // The caller brings both buffers, and the node reads the first as one operand alone: what it does
  // with others it may do when the second is written.
  bool may_be_elided(const ir::Node& node, const ElidableCopy& copy) {
    for (const ir::ValueId id : {copy.from, copy.to}) {
      if (!program_.slots[slots_.of(id)].is_callers()) return false;
    }
    const auto is_read = [&](ir::ValueId id) {
      return id != ir::kNoValue && slots_.root(id) == slots_.root(copy.from);
    };
    return std::ranges::count_if(node.inputs, is_read) == 1;
  }

  // On the host, a launch that only turns values into scratch is not done again for the next node:
  // products of one input share its rows in int8. True if there was one; `places` names its
  // scratch.
  bool was_done(const Launch& launch, SlotsOfLowered& places) {
    if (settings_.gpu || launch.kind() != LaunchKind::kKernel) return false;
    const auto touches = codegen::pdl_of(launch.kernel).parameters;
    std::vector<int32_t> written;
    std::string reads;
    bool only_makes_scratch = launch.checks.empty() && !launch.elidable_copy;
    auto argument = launch.buffers.begin();
    for (size_t i = 0; i < touches.size(); ++i) {
      if (launch.kernel.parameters[i].type.kind != codegen::Type::Kind::kBuffer) continue;
      const BufferArgument buffer = *argument++;
      const size_t slot = slots_.of(buffer, places);
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
      return id != ir::kNoValue && multiplied_.contains(slots_.root(id));
    });
  }

  static bool is_product(const ir::Node& node) {
    return node.op == ir::kScaledDot || node.op == ir::kMergedDots;
  }

  void add_launch(Launch& launch, const std::string& node, const SlotsOfLowered& places) {
    CompiledLaunch compiled = described(launch, node);
    if (on_gpu()) mark_constants(launch);
    for (const BufferArgument& argument : launch.buffers) {
      const size_t slot = slots_.of(argument, places);
      slots_.touch(slot);
      compiled.slots.push_back(slot);
    }
    describe_memory(launch, compiled);
    add_dependencies(launch, compiled);
    add_checks(launch, compiled);
    add_in_place(launch, compiled);
    if (launch.elidable_copy) {
      const auto [from, to] = *launch.elidable_copy;
      compiled.elidable_copy =
          SharedBuffers{slots_.of(from), slots_.of(to), storage_bytes_of(graph_.value(from)),
                        storage_bytes_of(graph_.value(to))};
    }
    if (launch.kind() == LaunchKind::kKernel) {
      kernels_.push_back({program_.launches.size(), std::move(launch.kernel)});
    }
    program_.launches.push_back(std::move(compiled));
  }

  // Of buffers of the caller's. One that is a second operand too is read elsewhere, perhaps.
  void add_in_place(const Launch& launch, CompiledLaunch& compiled) {
    for (const InPlace& pair : launch.in_place) {
      const size_t from = slots_.of(pair.from), to = slots_.of(pair.to);
      const bool is_once = std::ranges::count(compiled.slots, from) == 1;
      if (is_once && program_.slots[from].is_callers() && program_.slots[to].is_callers()) {
        compiled.in_place.emplace_back(from, to);
      }
    }
  }

  // All but its slots.
  CompiledLaunch described(const Launch& launch, const std::string& node) const {
    CompiledLaunch compiled;
    compiled.kind = launch.kind();
    compiled.call = launch.call;
    compiled.copy_bytes = launch.copy_bytes.value_or(0);
    compiled.node = node;
    compiled.indices = launch.indices;
    compiled.tasks = launch.tasks;
    compiled.task_cost = launch.task_cost;
    compiled.threads = launch.threads;
    compiled.shared_bytes = launch.shared_bytes;
    if (compiled.kind == LaunchKind::kKernel) {
      for (const codegen::Parameter& parameter : launch.kernel.parameters) {
        compiled.is_buffer.push_back(parameter.type.kind == codegen::Type::Kind::kBuffer);
      }
    } else {
      compiled.is_buffer.assign(launch.buffers.size(), true);
      compiled.is_buffer.resize(launch.buffers.size() + launch.indices.size(), false);
    }
    compiled.fetched = fetched_values(graph_, launch);
    return compiled;
  }

  void add_dependencies(const Launch& launch, const CompiledLaunch& compiled) {
    LaunchDependencies& dependencies = program_.dependencies;
    const bool has_pdl = on_gpu() && codegen::has_pdl(*settings_.gpu);
    if (compiled.kind == LaunchKind::kKernel) {
      return dependencies.add(launch.kernel, compiled.node, compiled.slots, has_pdl);
    }
    std::string called = launch.call ? launch.call->name() : std::string(name(compiled.kind));
    const bool launches_dependents =
        has_pdl && launch.call != nullptr && launch.call->may_launch_dependents();
    dependencies.add_call(std::move(called), compiled.node, compiled.slots, launch.writes,
                          launch.reads_written, launches_dependents);
    if (compiled.kind == LaunchKind::kCollective) {
      dependencies.mark_collective(launch.call->groups());
    }
  }

  void add_checks(const Launch& launch, CompiledLaunch& compiled) {
    for (const IndexCheck& check : launch.checks) {
      if (!is_first_check(check)) continue;
      const ir::Value& value = graph_.value(check.value);
      const size_t slot = slots_.of(check.value);
      slots_.touch(slot);
      program_.dependencies.add_watched(slot);
      compiled.checks.push_back({slot, value.dtype, element_count(*value.shape), check});
      std::string& reader = compiled.checks.back().check.node;
      if (reader.empty()) reader = compiled.node;
    }
  }

  // Values do not change: what one launch has checked, those behind it need not check again.
  bool is_first_check(const IndexCheck& check) {
    return checked_
        .emplace(slots_.root(check.value), check.bound.text(), check.first, check.step,
                 check.from_end, check.least)
        .second;
  }

  // What no launch writes need not be waited for: constants, and what the caller brings, which is
  // there before the first launch. Caches may be written in place: only pipelines, which know
  // what is new in them, read those before the wait.
  void mark_constants(Launch& launch) {
    const std::set<codegen::ValueId> fetched = fetched_buffers(launch.kernel);
    for_values(launch, [&](size_t parameter, ir::ValueId id) {
      const LaunchDependencies& dependencies = program_.dependencies;
      const size_t slot = slots_.of(id);
      const Slot::Kind kind = program_.slots[slot].kind;
      const bool brought = reads_before_wait(graph_, id, settings_) &&
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

  void add_shape_value(const ir::Node& node) {
    const ir::Value& value = graph_.value(node.output(0));
    ShapeWrite write;
    write.slot = slots_.of(node.output(0));
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

  const ir::Graph& graph_;
  const Settings& settings_;
  Program program_;
  ProgramSlots slots_;
  CollectiveOverlap overlap_;
  std::vector<LaunchKernel> kernels_;                // of launches that have one
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

LoweredProgram lower_program(const ir::Graph& fused, const Settings& settings) {
  return ProgramBuilder(fused, settings).build_lowered();
}

std::unique_ptr<Executable> build_on_host(const ir::Graph& fused, const Settings& settings,
                                          const codegen::StageSink& sink) {
  return run_on_host(make_program(fused, settings, sink), settings.host.threads);
}

std::unique_ptr<Executable> build_on_device(const ir::Graph& fused, const Settings& settings,
                                            std::shared_ptr<device::Device> device,
                                            const DeviceRunOptions& options,
                                            const codegen::StageSink& sink) {
  DeviceRunOptions with_cache = options;
  with_cache.kernel_cache = settings.kernel_cache;
  return run_on_device(make_program(fused, settings, sink), *settings.gpu, std::move(device),
                       with_cache);
}

}  // namespace tenon::kernels
