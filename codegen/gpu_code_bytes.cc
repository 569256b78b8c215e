#include "codegen/gpu_code_bytes.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/byte_form.h"
#include "base/dtype.h"

namespace tenon::codegen {
namespace {

// Every number as 64 bits: a list then never takes more memory than its bytes.
constexpr size_t kDescriptorBytes = 13 * sizeof(int64_t);
static_assert(sizeof(TmaDescriptor) <= kDescriptorBytes);
constexpr int kMaxThreads = 1024;

void require(bool sound, const char* what) {
  if (!sound) throw UserError(std::string(what) + " is out of range");
}

void write(const TmaDescriptor& descriptor, ByteWriter& writer) {
  const auto number = [&](int64_t value) { writer.number(value); };
  number(descriptor.buffer);
  number(static_cast<int64_t>(descriptor.dtype));
  for (const auto* size : {&descriptor.rows, &descriptor.columns, &descriptor.stride}) {
    number(size->parameter);
    number(size->constant);
  }
  number(descriptor.box_rows);
  number(descriptor.box_columns);
  number(descriptor.groups);
  number(descriptor.swizzled ? 1 : 0);
  number(descriptor.tf32 ? 1 : 0);
}

int64_t read_within(ByteReader& reader, int64_t least, int64_t most, const char* what) {
  const auto value = reader.number<int64_t>();
  require(value >= least && value <= most, what);
  return value;
}

int read_int(ByteReader& reader, int least, const char* what) {
  return static_cast<int>(read_within(reader, least, std::numeric_limits<int>::max(), what));
}

TmaDescriptor read_descriptor(ByteReader& reader) {
  TmaDescriptor descriptor;
  descriptor.buffer = read_int(reader, 0, "a buffer");
  const auto last = static_cast<int64_t>(DType::kF64);
  descriptor.dtype = static_cast<DType>(read_within(reader, 1, last, "an element type"));
  for (auto* size : {&descriptor.rows, &descriptor.columns, &descriptor.stride}) {
    size->parameter = read_int(reader, -1, "a size's parameter");
    size->constant = reader.number<int64_t>();
  }
  descriptor.box_rows = read_int(reader, 1, "a box");
  descriptor.box_columns = read_int(reader, 1, "a box");
  descriptor.groups = read_int(reader, 0, "a number of groups");
  descriptor.swizzled = read_within(reader, 0, 1, "a flag") == 1;
  descriptor.tf32 = read_within(reader, 0, 1, "a flag") == 1;
  return descriptor;
}

}  // namespace

std::string to_bytes(const GpuCode& code) {
  ByteWriter writer;
  writer.text(code.entry);
  writer.text(code.ptx);
  writer.number(int64_t{code.threads});
  writer.number(code.shared_bytes);
  writer.number(int64_t{code.pdl ? 1 : 0});
  for (const TmaDescriptor& descriptor : code.tma_descriptors) write(descriptor, writer);
  return writer.take();
}

GpuCode gpu_code_from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::string_view entry = reader.text(), ptx = reader.text();
  GpuCode code;
  require(!entry.empty() && entry.find('\0') == entry.npos, "the kernel's name");
  require(!ptx.empty() && ptx.find('\0') == ptx.npos, "the PTX");
  code.threads = static_cast<int>(read_within(reader, 1, kMaxThreads, "the number of threads"));
  code.shared_bytes = read_int(reader, 0, "the shared memory");
  code.pdl = read_within(reader, 0, 1, "a flag") == 1;
  require(reader.left() % kDescriptorBytes == 0, "the list of TMA descriptors");
  code.tma_descriptors.reserve(reader.left() / kDescriptorBytes);
  while (reader.left() > 0) code.tma_descriptors.push_back(read_descriptor(reader));
  code.entry = entry;
  code.ptx = ptx;
  return code;
}

bool fits(const GpuCode& code, const Kernel& kernel) {
  const auto count = static_cast<int>(kernel.parameters.size());
  return std::ranges::all_of(code.tma_descriptors, [&](const TmaDescriptor& descriptor) {
    return descriptor.buffer < count && descriptor.rows.parameter < count &&
           descriptor.columns.parameter < count && descriptor.stride.parameter < count;
  });
}

}  // namespace tenon::codegen
