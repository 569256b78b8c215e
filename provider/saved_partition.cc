#include "provider/saved_partition.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/byte_form.h"
#include "base/error.h"

namespace tenon::provider {
namespace {

constexpr uint32_t kForm = 1;

void write(ByteWriter& writer, const std::vector<uint64_t>& numbers) {
  writer.number(uint64_t{numbers.size()});
  for (const uint64_t number : numbers) writer.number(number);
}

// Items take eight bytes at least, so that no claimed count makes us allocate more than came.
uint64_t count_of(ByteReader& reader) {
  const auto count = reader.number<uint64_t>();
  if (count > reader.left() / sizeof(uint64_t)) throw UserError("the bytes end too early");
  return count;
}

std::vector<uint64_t> numbers(ByteReader& reader) {
  std::vector<uint64_t> result(count_of(reader));
  for (uint64_t& number : result) number = reader.number<uint64_t>();
  return result;
}

SavedPartition parse(std::string_view bytes) {
  ByteReader reader(bytes);
  if (const auto form = reader.number<uint32_t>(); form != kForm) {
    throw UserError(fmt::format("it has form {}, this version of Tenon reads {}", form, kForm));
  }
  SavedPartition partition;
  partition.inputs = numbers(reader);
  partition.outputs = numbers(reader);
  for (uint64_t count = count_of(reader); count > 0; --count) {
    partition.node_names.emplace_back(reader.text());
  }
  if (reader.left() > 0) throw UserError("bytes are left over");
  return partition;
}

}  // namespace

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
  const auto within = [](const std::vector<uint64_t>& indices, size_t count) {
    return std::ranges::all_of(indices, [&](uint64_t index) { return index < count; });
  };
  if (within(partition.inputs, node_inputs) && within(partition.outputs, node_outputs)) return;
  throw UserError(fmt::format(
      "the context node has {} inputs and {} outputs, fewer than the partition that it names: the "
      "context model was changed; compile the model again",
      node_inputs, node_outputs));
}

}  // namespace tenon::provider
