#include "provider/saved_partition.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "base/byte_form.h"
#include "base/error.h"

namespace tenon::provider {
namespace {

constexpr uint32_t kForm = 2;

constexpr uint64_t kUnknownRank = std::numeric_limits<uint64_t>::max();

void write(ByteWriter& writer, const std::vector<SavedValue>& values) {
  writer.number(uint64_t{values.size()});
  for (const auto& [index, declared] : values) {
    writer.number(index);
    writer.number(static_cast<uint8_t>(declared.dtype));
    writer.number(declared.dims ? uint64_t{declared.dims->size()} : kUnknownRank);
    if (!declared.dims) continue;
    for (const int64_t dim : *declared.dims) writer.number(dim);
  }
}

// Items take eight bytes at least, so that no claimed count makes us allocate more than came.
uint64_t checked_count(uint64_t count, const ByteReader& reader) {
  if (count > reader.left() / sizeof(uint64_t)) throw UserError("the bytes end too early");
  return count;
}
uint64_t count_of(ByteReader& reader) {
  const auto count = reader.number<uint64_t>();
  return checked_count(count, reader);
}

DeclaredTensor declared_tensor(ByteReader& reader) {
  DeclaredTensor tensor;
  const auto dtype = reader.number<uint8_t>();
  if (dtype == 0 || dtype > static_cast<uint8_t>(DType::kF64)) {
    throw UserError("an element type is unknown");
  }
  tensor.dtype = static_cast<DType>(dtype);
  const auto rank = reader.number<uint64_t>();
  if (rank == kUnknownRank) return tensor;
  tensor.dims.emplace(checked_count(rank, reader));
  for (int64_t& dim : *tensor.dims) dim = reader.number<int64_t>();
  return tensor;
}

std::vector<SavedValue> values(ByteReader& reader) {
  std::vector<SavedValue> result(count_of(reader));
  for (auto& [index, declared] : result) {
    index = reader.number<uint64_t>();
    declared = declared_tensor(reader);
  }
  return result;
}

std::string text(const DeclaredTensor& tensor) {
  if (!tensor.dims) return fmt::format("{} of any rank", name(tensor.dtype));
  std::vector<std::string> dims;
  for (const int64_t dim : *tensor.dims) {
    dims.push_back(dim == DeclaredTensor::kOpen ? "?" : std::to_string(dim));
  }
  return fmt::format("{}[{}]", name(tensor.dtype), fmt::join(dims, ","));
}

SavedPartition parse(std::string_view bytes) {
  ByteReader reader(bytes);
  if (const auto form = reader.number<uint32_t>(); form != kForm) {
    throw UserError(fmt::format("it has form {}, this version of Tenon reads {}", form, kForm));
  }
  SavedPartition partition;
  partition.inputs = values(reader);
  partition.outputs = values(reader);
  for (uint64_t count = count_of(reader); count > 0; --count) {
    partition.node_names.emplace_back(reader.text());
  }
  if (reader.left() > 0) throw UserError("bytes are left over");
  return partition;
}

}  // namespace

DeclaredTensor DeclaredTensor::of(DType dtype, const std::optional<Shape>& shape) {
  DeclaredTensor tensor{dtype};
  if (!shape) return tensor;
  tensor.dims.emplace();
  for (const Dim& dim : *shape) tensor.dims->push_back(dim.is_constant() ? dim.value() : kOpen);
  return tensor;
}

std::string section_of(std::string_view partition) {
  return fmt::format("interface/{}", partition);
}

std::string to_bytes(const SavedPartition& partition) {
  ByteWriter writer;
  writer.number(kForm);
  write(writer, partition.inputs);
  write(writer, partition.outputs);
  writer.number(uint64_t{partition.node_names.size()});
  for (const std::string& name : partition.node_names) writer.text(name);
  return writer.take();
}

SavedPartition parse_saved_partition(std::string_view bytes) {
  try {
    return parse(bytes);
  } catch (const UserError& error) {
    throw UserError(fmt::format(
        "a partition of the context cannot be read: {}; compile the model again", error.what()));
  }
}

void check_fits(const SavedPartition& partition, size_t node_inputs, size_t node_outputs) {
  const auto within = [](const std::vector<SavedValue>& values, size_t count) {
    return std::ranges::all_of(values,
                               [&](const SavedValue& value) { return value.index < count; });
  };
  if (within(partition.inputs, node_inputs) && within(partition.outputs, node_outputs)) return;
  throw UserError(fmt::format(
      "the context node has {} inputs and {} outputs, fewer than the partition that it names: the "
      "context model was changed; compile the model again",
      node_inputs, node_outputs));
}

Support is_declared_as(const DeclaredTensor& saved, const DeclaredTensor& now) {
  const auto is_same = [](int64_t a, int64_t b) {
    return a == b || a == DeclaredTensor::kOpen || b == DeclaredTensor::kOpen;
  };
  const bool is_known = saved.dims && now.dims;
  if (saved.dtype == now.dtype &&
      (!is_known || std::ranges::equal(*saved.dims, *now.dims, is_same))) {
    return Support::yes();
  }
  return Support::no(
      fmt::format("is {}, and it was {} when the context was compiled", text(now), text(saved)));
}

bool holds(DType declared, DType dtype) {
  return declared == dtype || (declared == DType::kU8 && dtype == DType::kF8E4M3FN);
}

}  // namespace tenon::provider
