#include "kernels/outside_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "graph_partitioner/ir/text.h"
#include "graph_partitioner/ir/verify.h"
#include "kernels/planning/saved_form.h"
#include "kernels/program_bytes.h"

namespace tenon::kernels {
namespace {

constexpr std::string_view kWhatToDo =
    "Put the file there that the model was compiled with, or compile the model again";

// Of constants that lie in no file: all targets and partitions share them.
std::string constant_section(std::string_view content) {
  return fmt::format("constants/{}", content);
}

std::string_view text_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest read_digest(SavedReader& reader) {
  const std::string_view bytes = reader.text();
  Digest digest{};
  if (bytes.size() != digest.size()) throw UserError("a digest has another length");
  std::memcpy(digest.data(), bytes.data(), bytes.size());
  return digest;
}

// Null: in none of them.
const BytesOfFile* file_of(const ir::Tensor& tensor, std::span<const BytesOfFile> files) {
  const std::less_equal<const std::byte*> before;
  const auto holds = [&](const BytesOfFile& file) {
    return before(file.bytes.data(), tensor.data) &&
           before(tensor.data + tensor.bytes, file.bytes.data() + file.bytes.size());
  };
  const auto found = std::ranges::find_if(files, holds);
  return found == files.end() ? nullptr : &*found;
}

size_t number_of(const std::string& file, std::vector<std::string>& files) {
  const auto known = std::ranges::find(files, file);
  if (known != files.end()) return static_cast<size_t>(known - files.begin());
  files.push_back(file);
  return files.size() - 1;
}

void store(const ir::Tensor& tensor, const std::string& section, ContextWriter& context) {
  if (context.has(section)) return;
  context.add_data(section, tensor.bytes, [&](int64_t first, std::span<std::byte> out) {
    std::memcpy(out.data(), tensor.data + first, out.size());
  });
}

// As OpenedProgram's weights that are stored packed: both kinds of contexts share with each other.
Digest content_of(const Slot& slot) {
  const auto bytes = static_cast<uint64_t>(slot.bytes.value());
  const auto* data = static_cast<const std::byte*>(slot.data.get());
  const std::vector<Digest> digests = data == nullptr ? digests_of(bytes, slot.pack, slot.unit)
                                                      : digests_of(std::span(data, bytes));
  return sha256(std::as_bytes(std::span(digests)));
}

}  // namespace

WeightFile::WeightFile(const std::string& path, std::string name) : name_(std::move(name)) {
  try {
    mapping_.emplace(path, "weight file");
  } catch (const UserError& error) {
    throw WeightFileError(fmt::format("{}. {}", error.what(), kWhatToDo));
  }
}

std::span<const std::byte> WeightFile::bytes(uint64_t offset, uint64_t count) const {
  const std::span<const std::byte> all = mapping_->bytes();
  if (offset > all.size() || count > all.size() - offset) {
    throw WeightFileError(fmt::format(
        "weight file '{}' has {} bytes, and weights of the model end at byte {}: it was "
        "cut, or is another. {}",
        name_, all.size(), offset + count, kWhatToDo));
  }
  return all.subspan(offset, count);
}

void WeightFile::fail_changed(std::string_view what) const {
  throw WeightFileError(
      fmt::format("weight file '{}': {} are not what the model was compiled with (SHA-256 "
                  "differs). {}",
                  name_, what, kWhatToDo));
}

std::string OutsideWeights::to_bytes() const {
  SavedWriter writer;
  writer.kind(precision);
  writer.number(threads);
  writer.text(text_of(lowering));
  writer.list(files, [&](const std::string& file) { writer.text(file); });
  writer.list(weights, [&](const Weight& weight) {
    writer.text(weight.content);
    writer.number(weight.file);
    writer.number(static_cast<int64_t>(weight.offset));
    writer.number(static_cast<int64_t>(weight.bytes));
    writer.list(weight.digests, [&](const Digest& digest) { writer.text(text_of(digest)); });
  });
  writer.list(packed, [&](const Packed& one) {
    writer.number(one.slot);
    writer.text(text_of(one.content));
  });
  return writer.take();
}

OutsideWeights OutsideWeights::from_bytes(std::string_view bytes) {
  SavedReader reader(bytes);
  OutsideWeights read;
  read.precision = reader.kind(Precision::kTf32);
  read.threads = reader.small(1);
  read.lowering = read_digest(reader);
  read.files = reader.list([&] { return std::string(reader.text()); });
  read.weights = reader.list([&] {
    Weight weight;
    weight.content = reader.text();
    weight.file = reader.size();
    weight.offset = reader.size();
    weight.bytes = reader.size();
    weight.digests = reader.list([&] { return read_digest(reader); });
    if (weight.file >= read.files.size()) throw UserError("a weight lies in no file");
    if (weight.digests.size() !=
        weight.bytes / kContextChunkBytes + (weight.bytes % kContextChunkBytes != 0 ? 1 : 0)) {
      throw UserError("a weight has another number of digests than of parts");
    }
    return weight;
  });
  read.packed = reader.list([&] {
    const size_t slot = reader.size();
    return Packed{slot, read_digest(reader)};
  });
  reader.end();
  return read;
}

OutsideWeights leave_outside(const Program& program, const Settings& settings,
                             std::span<const BytesOfFile> files, ContextWriter& context) {
  OutsideWeights outside;
  outside.precision = settings.precision;
  outside.threads = settings.host.threads;
  outside.lowering = program.texts->lowering;
  std::map<std::string, const ir::Tensor*> by_content;
  for (const auto& [tensor, content] : program.texts->constants) {
    by_content.emplace(content, tensor.get());
  }
  for (const auto& [content, tensor] : by_content) {
    const BytesOfFile* file = file_of(*tensor, files);
    if (file == nullptr) {
      store(*tensor, constant_section(content), context);
      continue;
    }
    const auto within = static_cast<uint64_t>(tensor->data - file->bytes.data());
    outside.weights.push_back({content, number_of(file->file, outside.files), file->offset + within,
                               tensor->bytes, digests_of(std::span(tensor->data, tensor->bytes))});
  }
  for (size_t i = 0; i < program.slots.size(); ++i) {
    const Slot& slot = program.slots[i];
    if (slot.kind != Slot::Kind::kConstant || is_small_constant(slot)) continue;
    outside.packed.push_back({i, content_of(slot)});
  }
  return outside;
}

OutsideGraph::OutsideGraph(std::shared_ptr<const ContextFile> context, OutsideWeights weights,
                           std::string_view text, const FindWeightFile& find)
    : context_(std::move(context)), weights_(std::move(weights)) {
  for (const std::string& name : weights_.files) {
    if (!find) throw InternalError("a context without weights is opened without its weight files");
    files_.push_back(find(name));
  }
  graph_ = ir::parse_with_constants(text, [&](std::string_view content, size_t bytes) {
    return this->find(std::string(content), bytes);
  });
  if (const Support sound = ir::verify(graph_); !sound) throw UserError(sound.reason);
}

std::span<const std::byte> OutsideGraph::find(const std::string& content, size_t bytes) {
  auto known = constants_.find(content);
  if (known == constants_.end()) {
    known = constants_.emplace(content, constant_of(content)).first;
    if (known->second.data.name.empty()) known->second.data.name = known->second.name;
  }
  if (known->second.data.bytes.size() != bytes) {
    throw UserError(fmt::format("constant {} has another size", content));
  }
  return known->second.data.bytes;
}

OutsideGraph::Constant OutsideGraph::constant_of(const std::string& content) const {
  const auto weight =
      std::ranges::find(weights_.weights, content, &OutsideWeights::Weight::content);
  if (weight == weights_.weights.end()) {
    return {"", context_.get(), context_->data(constant_section(content))};
  }
  const WeightFile& file = *files_.at(weight->file);
  const std::span<const std::byte> bytes = file.bytes(weight->offset, weight->bytes);
  return {fmt::format("bytes {} to {}", weight->offset, weight->offset + weight->bytes), &file,
          DataSection{"", bytes, weight->digests}};
}

WeightCheck OutsideGraph::check(std::shared_ptr<const void> kept, bool release) const {
  WeightCheck check{std::move(kept), release};
  for (const auto& [_, constant] : constants_) {
    check.add(WeightCheck::kAnySlot, *constant.source, constant.data);
  }
  return check;
}

LoweredProgram OutsideGraph::lower(Settings settings) {
  settings.precision = weights_.precision;
  settings.host.threads = weights_.threads;
  settings_ = std::move(settings);
  return lower_program(graph_, settings_);
}

}  // namespace tenon::kernels
