#include "provider/context_input.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/stopwatch.h"
#include "kernels/saved_program.h"
#include "provider/api.h"
#include "provider/compatibility.h"
#include "provider/import_graph.h"
#include "provider/node_names.h"
#include "provider/saved_partition.h"
#include "provider/tensor_info.h"

namespace tenon::provider {
namespace {

namespace fs = std::filesystem;

const OrtApi& api() { return *runtime().api; }

// Where the model's relative paths begin.
std::string folder_of(const OrtGraph& graph, const ContextSettings& settings,
                      const std::string& otherwise = "") {
  const ORTCHAR_T* path = nullptr;
  check(api().Graph_GetModelPath(&graph, &path));
  if (path != nullptr && *path != 0) return fs::path(path).parent_path().string();
  if (!otherwise.empty()) return otherwise;
  if (!settings.model_path.empty()) return fs::path(settings.model_path).parent_path().string();
  throw UserError(
      "the context model came from memory and its context or weights stand in files: give "
      "ep.context_file_path, the path that the model would have, or open the model by its path");
}

// Program's values are numbered by the node's, whatever these are called here.
std::vector<std::string> pick(const std::vector<std::string>& names,
                              const std::vector<SavedValue>& values) {
  std::vector<std::string> picked;
  for (const SavedValue& value : values) picked.push_back(names[value.index]);
  return picked;
}

// The node is one half of what was compiled.
void check_is_its_own(const ContextFile& file, const ContextNode& node) {
  if (node.digest.empty()) {
    throw UserError(fmt::format(
        "context node '{}' does not say which data belongs to it: a version of Tenon before this "
        "one wrote it, or it was changed; compile the model again",
        node.name));
  }
  if (node.digest == hex(file.digest())) return;
  throw UserError(fmt::format(
      "{}: it is not what the context model was compiled with (its digest is {}, node '{}' wants "
      "{}): put the data there that was written with the model, or compile the model again",
      file.origin(), hex(file.digest()), node.name, node.digest));
}

// Memory comes from the runtime by what the model declares, and launches take it as the program
// means it.
void check_declared(const ContextNode& node, std::string_view what,
                    const std::vector<SavedValue>& saved,
                    const std::vector<const OrtValueInfo*>& values) {
  for (const auto& [index, declared] : saved) {
    const TensorInfo info = values[index] == nullptr ? TensorInfo{} : tensor_info(*values[index]);
    const Support same = is_declared_as(declared, DeclaredTensor::of(info.dtype, info.shape));
    if (same) continue;
    throw UserError(fmt::format(
        "{} {} of context node '{}' {}: the context model was changed; compile the model again",
        what, index, node.name, same.reason));
  }
}

// Reports name the nodes that a fusion is made of by number.
void check_sources(const std::vector<kernels::FusionReport>& fusions, size_t nodes) {
  for (const kernels::FusionReport& fusion : fusions) {
    for (const int source : fusion.sources) {
      if (source >= 0 && static_cast<size_t>(source) < nodes) continue;
      throw UserError("the context's report names nodes that it does not have");
    }
  }
}

// Both halves of the file.
void check_interface(const kernels::Program& program, const SavedPartition& saved) {
  const auto fits = [](const auto& meant, const SavedValue& value) {
    return holds(value.declared.dtype, meant.dtype);
  };
  if (std::ranges::equal(program.inputs, saved.inputs, fits) &&
      std::ranges::equal(program.outputs, saved.outputs, fits)) {
    return;
  }
  throw UserError(
      "the context's program and its node do not fit each other: compile the model again");
}

// Sessions on the CPU say what is missing, not what the file would need.
void refuse_gpus(const ContextFile& file, const std::string& partition,
                 const kernels::Settings& settings) {
  if (kernels::fit_of(file, partition, settings).kind != kernels::SavedFit::Kind::kNot) return;
  std::vector<std::string> gpus;
  for (const kernels::SavedProgram& program : kernels::saved_programs(file)) {
    if (program.name == partition && is_gpu(program.target)) gpus.push_back(program.target);
  }
  if (gpus.empty()) return;
  throw UserError(fmt::format(
      "{}: it was compiled for {}, a GPU that is not in this machine (or the session was not given "
      "it): open it on such a GPU, or compile the model for the CPU",
      file.origin(), fmt::join(gpus, ", ")));
}

}  // namespace

std::shared_ptr<const ContextFile> ContextInput::file_of(const OrtGraph& graph, ContextNode& node) {
  if (node.context.empty()) {
    throw UserError(fmt::format(
        "context node '{}' neither holds a context nor names its file: compile the model again",
        node.name));
  }
  if (node.embedded) {
    const auto file = ContextFile::from_bytes(node.context);
    node.context = {};
    check_is_its_own(*file, node);
    return file;
  }
  const std::string path = data_file_path(folder_of(graph, settings_), node.context);
  std::shared_ptr<const ContextFile>& file = files_[path];
  if (file == nullptr) {
    file = options_.context_weights == "copy" ? ContextFile::read(path) : ContextFile::open(path);
  }
  check_is_its_own(*file, node);
  return file;
}

std::shared_ptr<const kernels::WeightFile> ContextInput::weight_file_of(const OrtGraph& graph,
                                                                        const std::string& name) {
  std::shared_ptr<const kernels::WeightFile>& file = weight_files_[name];
  if (file == nullptr) {
    const std::string folder = folder_of(graph, settings_, settings_.weight_folder);
    file = std::make_shared<const kernels::WeightFile>(weight_file_path(folder, name), name);
  }
  return file;
}

CompiledPartition ContextInput::open(const OrtGraph& graph, const OrtNode& node,
                                     const Target& target, std::shared_ptr<DiskCache> cache) {
  const Stopwatch watch;
  if (options_.contexts == "refuse") {
    throw UserError(fmt::format(
        "contexts=refuse: node '{}' is a compiled context, which says what this process runs: open "
        "the model that it was compiled from, or leave the option out where you trust the file",
        name_of_node(node)));
  }
  ContextNode read = read_context_node(node);
  const std::shared_ptr<const ContextFile> file = file_of(graph, read);
  if (!file->has(section_of(read.partition))) {
    throw UserError(fmt::format(
        "there is no partition '{}' in the context {}: the model and its data belong to different "
        "compilations; compile the model again",
        read.partition, file->origin()));
  }
  const SavedPartition saved = parse_saved_partition(file->section(section_of(read.partition)));
  check_fits(saved, read.inputs.size(), read.outputs.size());
  check_declared(read, "input", saved.inputs, inputs_of(node));
  check_declared(read, "output", saved.outputs, outputs_of(node));

  kernels::Settings settings = target.settings(options_);
  settings.kernel_cache = std::move(cache);
  if (!settings.gpu) refuse_gpus(*file, read.partition, settings);
  std::vector<std::string> weight_files;
  const auto find = [&](const std::string& name) {
    weight_files.push_back(name);
    return weight_file_of(graph, name);
  };
  kernels::OpenedProgram opened = kernels::open_program(file, read.partition, settings, find);
  check_interface(opened.program, saved);
  check_sources(opened.program.fusions, saved.node_names.size());

  CompiledPartition result;
  result.input_names = pick(read.inputs, saved.inputs);
  result.output_names = pick(read.outputs, saved.outputs);
  result.report.nodes = import_graph(graph).node_names;
  result.report.node_names = saved.node_names;
  result.report.words = opened.program.words;
  result.report.context = {file->origin(), file->bytes(), opened.recompiled,
                           saved.node_names.size(), std::move(weight_files)};
  result.executable = make_executable(std::move(opened.program), settings, options_, target);
  describe(read.partition, watch.milliseconds(), result);
  return result;
}

}  // namespace tenon::provider
