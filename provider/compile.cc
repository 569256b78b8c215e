#include "provider/compile.h"

#include <algorithm>
#include <chrono>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/stopwatch.h"
#include "distributed/job.h"
#include "distributed/sharding/shard.h"
#include "graph_partitioner/ir/fusions.h"
#include "graph_partitioner/pipeline.h"
#include "kernels/build_program.h"
#include "kernels/planning/collectives.h"
#include "kernels/selector.h"
#include "provider/api.h"
#include "provider/compiled_only.h"
#include "provider/context_node.h"
#include "provider/context_output.h"
#include "provider/dump.h"
#include "provider/file_annotations.h"
#include "provider/model_digest.h"
#include "provider/names.h"
#include "provider/rank_memory.h"
#include "provider/tuning.h"

namespace tenon::provider {

namespace {

// The op whose body this graph is; empty for a main graph.
std::string owner_op(const OrtGraph& graph) {
  const OrtNode* parent = nullptr;
  check(runtime().api->Graph_GetParentNode(&graph, &parent));
  const char* op = "";
  if (parent != nullptr) check(runtime().api->Node_GetOperatorType(parent, &op));
  return op;
}

Partitioning claim_nothing(const ir::Graph& graph, const std::string& reason) {
  Partitioning result;
  for (size_t i = 0; i < graph.order().size(); ++i) {
    result.left_out.push_back({static_cast<int>(i), reason});
  }
  return result;
}

// Contexts of ours are claimed one by one, as they were compiled.
void claim_contexts(const ir::Graph& graph, Partitioning& partitioning) {
  std::vector<LeftOut> left_out;
  for (LeftOut& left : partitioning.left_out) {
    const ir::Node& node = graph.node(graph.order()[left.source]);
    const std::string source = node.op == kContextOp ? source_of(node) : "";
    if (source == kProviderName) {
      partitioning.partitions.push_back({{left.source}, {}});
      continue;
    }
    if (node.op == kContextOp) {
      left.reason = fmt::format("it is a context of {}",
                                source.empty() ? "a provider that it does not name" : source);
    }
    left_out.push_back(std::move(left));
  }
  partitioning.left_out = std::move(left_out);
}

}  // namespace

Claims claim(const OrtGraph& graph, const Options& options, const Target& target, bool to_context) {
  Claims claims{import_graph(graph), {}};
  // Bodies of control flow stay what they are. Those of other ops (SequenceMap) are functions that
  // the runtime inlines after claims were made, and then it does not know the fused node.
  const std::string owner = owner_op(graph);
  if (!owner.empty() && owner != "If" && owner != "Loop" && owner != "Scan") {
    claims.partitioning = claim_nothing(
        claims.imported.graph, "it stands in the body of " + owner + ", which the runtime inlines");
    return claims;
  }
  if (!owner.empty() && to_context) {
    claims.partitioning = claim_nothing(
        claims.imported.graph,
        fmt::format("it stands in a body of {}, where a context model has no contexts", owner));
    return claims;
  }
  kernels::Settings settings = target.settings(options);
  settings.keep_texts = to_context;
  const SupportsFn supports = [&](const ir::Graph& fused, const ir::Node& node) {
    return kernels::supports(fused, node, settings);
  };
  const PartitionOptions rules{options.claim == "all", options.exclude_ops, options.exclude_nodes,
                               !target.on_gpu(), target.job != nullptr};
  claims.partitioning = partition(claims.imported.graph, supports, rules);
  claim_contexts(claims.imported.graph, claims.partitioning);
  return claims;
}

namespace {

std::vector<std::string> names(const ir::Graph& graph, const std::vector<ir::ValueId>& values) {
  std::vector<std::string> result;
  for (const ir::ValueId id : values) result.push_back(graph.value(id).name);
  return result;
}

// The OrtGraph and its tensors die after Compile; what Run compares with must be our own.
std::vector<CompiledPartition::Default> copy_defaults(const ImportedGraph& imported) {
  std::vector<CompiledPartition::Default> defaults;
  for (const std::string& name : imported.assumed_defaults) {
    const ir::TensorPtr value = imported.graph.value(imported.graph.find(name)).constant;
    defaults.push_back(
        {name, ir::Tensor::copy(value->dtype, value->dims, {value->data, value->bytes})});
  }
  return defaults;
}

// Fuses for one target; products of one input that stay apart there go into the report.
ir::Graph fuse_for(const OrtGraph& whole, const kernels::Settings& settings, ir::Graph imported,
                   const Dump& dump, PartitionReport& report) {
  const SupportsFn supports = [&](const ir::Graph& part, const ir::Node& node) {
    Support answer = kernels::supports(part, node, settings);
    // Of one product it is only a question: dequantize_rows asks it.
    if (!answer && settings.gpu && node.is(ir::kMergedDots) && node.outputs.size() > 1) {
      report.apart.push_back(
          {fmt::format("{}", fmt::join(names(part, node.outputs), ", ")), answer.reason});
    }
    return answer;
  };
  const Stopwatch watch;
  ShardFn shard;
  if (settings.collectives) {
    shard = [&](ir::Graph& graph) {
      const int64_t ranks = settings.collectives->ranks();
      report.sharding = distributed::shard(graph, {.rank = settings.collectives->rank(),
                                                   .ranks = ranks,
                                                   .annotations = annotations_of(whole, ranks)});
      report.sharding->engine = settings.collectives->engine();
    };
  }
  ir::Graph fused = fuse(std::move(imported), dump.observer(), supports, shard);
  report.phases.push_back({"fusions", watch.milliseconds()});
  return fused;
}

ImportedGraph import_claimed(const OrtGraph& graph, const ClaimedInputs& claimed, bool with_files) {
  ImportedGraph imported = import_graph(graph, with_files);
  ir::tell_inputs(imported.graph, claimed.of(imported.graph));
  return imported;
}

void add_further_targets(const OrtGraph& graph, std::string_view name, const ClaimedInputs& claimed,
                         const Options& options, const std::shared_ptr<DiskCache>& cache,
                         const ContextWork& context) {
  for (const Target& target : context.further) {
    const Dump dump(options.dump_dir, fmt::format("{}.{}", name, target.description->arch));
    kernels::Settings settings = target.settings(options);
    settings.kernel_cache = cache;
    settings.keep_texts = true;
    PartitionReport of_target;  // the session's own is what people read
    ImportedGraph imported = import_claimed(graph, claimed, context.output.has_weights_outside());
    const ir::Graph fused = fuse_for(graph, settings, std::move(imported.graph), dump, of_target);
    context.output.add(name, kernels::make_program(fused, settings, dump.kernel_sink()), settings,
                       std::move(imported.files));
  }
}

}  // namespace

namespace {

// Null: it is plain.
std::shared_ptr<kernels::CollectiveMemory> memory_of(std::string_view name, const Options& options,
                                                     const Target& target,
                                                     PartitionReport& report) {
  if (!options.collective_windows || !target.job) return nullptr;
  auto memory = rank_memory(target.job, std::string(name), report.sharding);
  if (!memory) report.plain_memory = "ranks bind different numbers of heads of a cache";
  return memory;
}

// Empty: it runs.
std::string_view why_not_run(const Options& options, const ContextWork* context) {
  if (options.tensor_parallel_plan) {
    return "tensor_parallel_plan=1: this session shows what one of several ranks would do and "
           "cannot run; leave the option out, and start all ranks";
  }
  if (context != nullptr && !context->runs) {
    return "this session was made to compile a context model and cannot run: open the context "
           "model";
  }
  return "";
}

}  // namespace

std::unique_ptr<kernels::Executable> make_executable(
    kernels::Program program, const kernels::Settings& settings, const Options& options,
    const Target& target, std::shared_ptr<kernels::CollectiveMemory> collective_memory) {
  if (!target.on_gpu()) return kernels::run_on_host(std::move(program), settings.host.threads);
  kernels::DeviceRunOptions run;
  run.graphs = options.enable_cuda_graph && options.cuda_graph_scope == "partition";
  run.memory_limit = options.memory_limit;
  run.deadline = std::chrono::milliseconds(options.run_deadline_ms);
  run.streams_last = options.has_user_compute_stream;
  run.kernel_cache = settings.kernel_cache;
  run.weight_pool = target.weight_pool;
  run.collective_order = target.collective_order;
  run.written_sizes = target.written_sizes;
  run.collective_memory = std::move(collective_memory);
  return kernels::run_on_device(std::move(program), *settings.gpu, target.device, run);
}

void describe(std::string_view name, double milliseconds, CompiledPartition& partition) {
  PartitionReport& report = partition.report;
  const kernels::Executable& executable = *partition.executable;
  report.name = name;
  report.inputs = partition.input_names;
  report.outputs = partition.output_names;
  report.fusions = executable.fusions();
  report.kernels = executable.kernels();
  report.weight_bytes = executable.weight_bytes();
  report.packed_bytes = executable.packed_bytes();
  std::ranges::copy(executable.phases(), std::back_inserter(report.phases));
  report.compile_ms = milliseconds;
}

CompiledPartition compile(const OrtGraph& graph, std::string_view name,
                          const ClaimedInputs& claimed, const Options& options,
                          const Target& target, std::shared_ptr<DiskCache> cache,
                          const ContextWork* context) {
  const Stopwatch watch;
  const Dump dump(options.dump_dir, name);
  ImportedGraph imported =
      import_claimed(graph, claimed, context != nullptr && context->output.has_weights_outside());
  dump.graph("imported", imported.graph);
  if (target.job) {
    target.job->require_equal(
        "Compile", {{{"model", fmt::format("{}: {}", name, model_digest(imported.graph))}}});
  }

  CompiledPartition result;
  result.input_names = names(imported.graph, imported.graph.inputs());
  result.output_names = names(imported.graph, imported.graph.outputs());
  result.defaults = copy_defaults(imported);

  result.report.nodes = imported.node_names;
  result.report.node_names = imported.node_names;

  kernels::Settings settings = target.settings(options);
  settings.kernel_cache = cache;
  settings.keep_texts = context != nullptr;
  // Weights are packed from it until the executable is there.
  const ir::Graph fused = fuse_for(graph, settings, std::move(imported.graph), dump, result.report);
  settings.records = tune_partition(fused, name, settings, options, target);
  kernels::Program program = kernels::make_program(fused, settings, dump.kernel_sink());
  if (context != nullptr) {
    context->output.add(name, program, settings, std::move(imported.files));
    program.texts.reset();
    add_further_targets(graph, name, claimed, options, cache, *context);
  }
  if (const std::string_view why_not = why_not_run(options, context); !why_not.empty()) {
    result.executable = compiled_only(std::move(program), why_not);
  } else {
    const auto memory = memory_of(name, options, target, result.report);
    result.executable = make_executable(std::move(program), settings, options, target, memory);
    if (memory) result.report.plain_memory = target.job->why_no_memory();
  }
  describe(name, watch.milliseconds(), result);
  return result;
}

}  // namespace tenon::provider
