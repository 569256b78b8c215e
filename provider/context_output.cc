#include "provider/context_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "kernels/saved_program.h"
#include "provider/node_names.h"
#include "provider/saved_partition.h"
#include "provider/tensor_info.h"

namespace tenon::provider {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// A protobuf holds less than 2 GiB, and the rest of the model wants some room.
constexpr uint64_t kMostEmbedded = (uint64_t{2} << 30) - (uint64_t{64} << 20);

// Beside which the contexts' file shall stand; empty: they are inside.
std::string model_with_file(const ContextSettings& settings, const std::string& model_path) {
  if (settings.embed) return "";
  const std::string model = context_model_path(settings, model_path);
  if (model.empty()) {
    throw UserError(
        "the model came from memory, so nothing says where its context's file shall be: give "
        "ep.context_file_path, or keep the context inside of the model with "
        "ep.context_embed_mode=1");
  }
  return model;
}

uint64_t index_in(const std::vector<std::string>& names, const std::string& name) {
  const auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    throw InternalError(fmt::format("the context node has no value named '{}'", name));
  }
  return static_cast<uint64_t>(found - names.begin());
}

// `values`: of the fused node, with what the model declares of them.
std::vector<SavedValue> saved_values(const std::vector<std::string>& wanted,
                                     const std::vector<std::string>& names,
                                     const std::vector<const OrtValueInfo*>& values) {
  std::map<std::string, DeclaredTensor> declared;
  for (const OrtValueInfo* value : values) {
    if (value == nullptr) continue;
    const TensorInfo info = tensor_info(*value);
    declared[name_of_value(*value)] = DeclaredTensor::of(info.dtype, info.shape);
  }
  std::vector<SavedValue> saved;
  for (const std::string& name : wanted) saved.push_back({index_in(names, name), declared[name]});
  return saved;
}

SavedPartition saved_form(const CompiledPartition& compiled, const ContextNode& node,
                          const OrtNode& fused_node) {
  SavedPartition saved;
  saved.inputs = saved_values(compiled.input_names, node.inputs, inputs_of(fused_node));
  saved.outputs = saved_values(compiled.output_names, node.outputs, outputs_of(fused_node));
  saved.node_names = compiled.report.node_names;
  return saved;
}

Json to_json(const std::vector<kernels::SavedProgram::File>& files) {
  Json list = Json::array();
  for (const auto& file : files) {
    list.push_back({{"file", file.name}, {"weight_bytes", file.bytes}, {"end", file.end}});
  }
  return list;
}

Json to_json(const kernels::SavedProgram& program) {
  return {{"target", program.target},
          {"describes", program.describes},
          {"launches", program.launches},
          {"kernels", program.kernels},
          {"machine_code", program.machine_code},
          {"weight_bytes", program.weight_bytes},
          {"cudnn", program.cudnn},
          {"has_weights", program.weights == kernels::SavedWeights::kInside},
          {"weight_files", to_json(program.files)}};
}

// What the file says of a partition, for whoever looks at the model without opening it.
void describe(const ContextFile& file, ContextNode& node, WrittenContext& report) {
  std::vector<std::string> targets;
  Json programs = Json::array();
  for (const kernels::SavedProgram& program : kernels::saved_programs(file)) {
    if (program.name != node.partition) continue;
    targets.push_back(program.target);
    programs.push_back(to_json(program));
    report.kernels += program.kernels;
    report.machine_code += program.machine_code;
    if (!program.cudnn.empty()) report.cudnn = program.cudnn;
    for (const auto& weights : program.files) report.weight_files.insert(weights.name);
  }
  Json notes = Json::parse(node.notes);
  notes[kDigestNote] = hex(file.digest());
  notes["file_bytes"] = file.bytes();
  notes["programs"] = programs;
  node.architecture = fmt::format("{}", fmt::join(targets, ","));
  node.notes = notes.dump(-1, ' ', false, Json::error_handler_t::replace);
  report.targets = std::move(targets);
}

using OwnedNode = std::unique_ptr<OrtNode, void (*)(OrtNode*)>;

}  // namespace

ContextOutput::ContextOutput(ContextSettings settings, const std::string& model_path,
                             std::vector<std::string> kept)
    : settings_(std::move(settings)),
      context_model_(model_with_file(settings_, model_path)),
      model_folder_(model_path.empty() ? settings_.weight_folder
                                       : fs::path(model_path).parent_path().string()),
      kept_(std::move(kept)) {
  report_.weights_outside = settings_.weights_outside;
  if (context_model_.empty()) return;
  file_ =
      ContextWriter::to_file(fs::path(context_model_).parent_path(), [this](const Digest& digest) {
        std::error_code error;
        const fs::path path = path_of_data(digest);
        if (!fs::exists(path, error)) taken_back_ = path;
        return path.filename().string();
      });
}

ContextOutput::~ContextOutput() {
  std::error_code error;
  if (!taken_back_.empty()) fs::remove(taken_back_, error);
}

std::filesystem::path ContextOutput::path_of_data(const Digest& digest) const {
  return fs::path(context_model_).parent_path() / data_file_name(context_model_, digest);
}

std::string ContextOutput::name_of(std::string_view partition) const {
  return settings_.name_prefix + std::string(partition);
}

ContextWriter& ContextOutput::writer_of(std::string_view partition) {
  if (file_) return *file_;
  const auto known = std::ranges::find(embedded_, partition, &Embedded::partition);
  if (known != embedded_.end()) return *known->writer;
  return *embedded_.emplace_back(Embedded{std::string(partition), ContextWriter::to_memory()})
              .writer;
}

void ContextOutput::add(std::string_view partition, const kernels::Program& program,
                        const kernels::Settings& settings,
                        std::vector<kernels::BytesOfFile> files) {
  ContextWriter& writer = writer_of(partition);
  kernels::SaveOptions options;
  if (has_weights_outside()) {
    for (const kernels::BytesOfFile& bytes : files) check_file(bytes);
    options = {kernels::SavedWeights::kOutside, files};
  }
  kernels::save_program(program, name_of(partition), settings, writer, options);
  uint64_t embedded = 0;
  for (const Embedded& one : embedded_) embedded += one.writer->bytes();
  if (embedded > kMostEmbedded) {
    throw UserError(
        fmt::format("the contexts take {} MiB, and an ONNX model cannot hold 2 GiB: write them to "
                    "a file beside "
                    "the model with ep.context_embed_mode=0",
                    embedded >> 20));
  }
}

// Sessions that open the context will look there as well.
void ContextOutput::check_file(const kernels::BytesOfFile& bytes) {
  auto known = weight_files_.find(bytes.file);
  if (known == weight_files_.end()) {
    const std::string path = weight_file_path(model_folder_, bytes.file);
    known = weight_files_.try_emplace(bytes.file, path, bytes.file).first;
  }
  (void)known->second.bytes(bytes.offset, bytes.bytes.size());
}

void ContextOutput::add_node(std::string_view partition, const CompiledPartition& compiled,
                             const OrtNode& fused_node) {
  ContextNode node;
  node.name = name_of_node(fused_node);
  node.partition = name_of(partition);
  node.embedded = !file_;
  node.is_main = node.embedded || nodes_.empty();
  node.inputs = input_names(fused_node);
  node.outputs = output_names(fused_node);
  // Defaults are packed, and nobody can feed them any more: the runtime makes no inputs of them in
  // a context model.
  for (const auto& value : compiled.defaults) std::erase(node.inputs, value.name);
  if (nodes_.empty()) node.inputs.insert(node.inputs.end(), kept_.begin(), kept_.end());
  const Json notes = {{"form", 2},
                      {"version", TENON_VERSION},
                      {"nodes", compiled.report.nodes.size()},
                      {"fusions", compiled.report.fusions.size()}};
  node.notes = notes.dump();
  writer_of(partition).add(section_of(node.partition),
                           to_bytes(saved_form(compiled, node, fused_node)));
  nodes_.push_back(std::move(node));
}

void ContextOutput::finish_file() {
  file_->finish();
  report_.file = path_of_data(file_->digest());
  const auto file = ContextFile::open(report_.file);
  report_.bytes = file->bytes();
  for (ContextNode& node : nodes_) {
    node.context = fs::path(report_.file).filename();
    describe(*file, node, report_);
  }
}

void ContextOutput::finish_embedded() {
  for (ContextNode& node : nodes_) {
    const auto own = std::ranges::find_if(
        embedded_, [&](const Embedded& one) { return name_of(one.partition) == node.partition; });
    own->writer->finish();
    node.context = own->writer->take();
    own->writer = nullptr;
    report_.bytes += node.context.size();
    describe(*ContextFile::from_bytes(node.context), node, report_);
  }
}

std::vector<OrtNode*> ContextOutput::finish() {
  file_ ? finish_file() : finish_embedded();
  std::vector<OwnedNode> made;
  for (ContextNode& node : nodes_) {
    made.emplace_back(make_context_node(node), runtime().api->ReleaseNode);
    node.context = {};
  }
  std::vector<OrtNode*> given;
  for (OwnedNode& node : made) given.push_back(node.release());
  return given;
}

}  // namespace tenon::provider
