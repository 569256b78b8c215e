#include "codegen/gpu_code_bytes.h"

#include <algorithm>

#include "base/byte_form.h"
#include "base/dtype.h"

namespace tenon::codegen {
namespace {

constexpr size_t kDescriptorBytes = 4 + 1 + 3 * (4 + 8) + 3 * 4 + 2;
constexpr int kMaxThreads = 1024;

void require(bool sound, const char* what) {
  if (!sound) throw UserError(std::string(what) + " is out of range");
}

void write(const TmaDescriptor::Size& size, ByteWriter& writer) {
  writer.number(int32_t{size.parameter});
  writer.number(size.constant);
}

void write(const TmaDescriptor& descriptor, ByteWriter& writer) {
  writer.number(int32_t{descriptor.buffer});
  writer.number(static_cast<uint8_t>(descriptor.dtype));
  for (const auto* size : {&descriptor.rows, &descriptor.columns, &descriptor.stride}) {
    write(*size, writer);
  }
  for (const int number : {descriptor.box_rows, descriptor.box_columns, descriptor.groups}) {
    writer.number(int32_t{number});
  }
  writer.number(uint8_t{descriptor.swizzled});
  writer.number(uint8_t{descriptor.tf32});
}

TmaDescriptor::Size read_size(ByteReader& reader) {
  TmaDescriptor::Size size;
  size.parameter = reader.number<int32_t>();
  size.constant = reader.number<int64_t>();
  require(size.parameter >= -1, "a size's parameter");
  return size;
}

TmaDescriptor read_descriptor(ByteReader& reader) {
  TmaDescriptor descriptor;
  descriptor.buffer = reader.number<int32_t>();
  const auto dtype = reader.number<uint8_t>();
  require(descriptor.buffer >= 0, "a buffer");
  require(dtype < static_cast<uint8_t>(DType::kString), "an element type");
  descriptor.dtype = static_cast<DType>(dtype);
  require(bit_width(descriptor.dtype) > 0, "an element type");
  for (auto* size : {&descriptor.rows, &descriptor.columns, &descriptor.stride}) {
    *size = read_size(reader);
  }
  for (int* number : {&descriptor.box_rows, &descriptor.box_columns, &descriptor.groups}) {
    *number = reader.number<int32_t>();
  }
  require(descriptor.box_rows > 0 && descriptor.box_columns > 0, "a box");
  require(descriptor.groups >= 0, "a number of groups");
  descriptor.swizzled = reader.flag();
  descriptor.tf32 = reader.flag();
  return descriptor;
}

}  // namespace

std::string to_bytes(const GpuCode& code) {
  ByteWriter writer;
  writer.text(code.entry);
  writer.text(code.ptx);
  writer.number(int32_t{code.threads});
  writer.number(code.shared_bytes);
  writer.number(uint8_t{code.pdl});
  for (const TmaDescriptor& descriptor : code.tma_descriptors) write(descriptor, writer);
  return writer.take();
}

GpuCode gpu_code_from_bytes(std::string_view bytes) {
  ByteReader reader(bytes);
  const std::string_view entry = reader.text(), ptx = reader.text();
  GpuCode code;
  code.threads = reader.number<int32_t>();
  code.shared_bytes = reader.number<int64_t>();
  code.pdl = reader.flag();
  require(!entry.empty() && entry.find('\0') == entry.npos, "the kernel's name");
  require(!ptx.empty() && ptx.find('\0') == ptx.npos, "the PTX");
  require(code.threads > 0 && code.threads <= kMaxThreads, "the number of threads");
  require(code.shared_bytes >= 0 && code.shared_bytes <= INT32_MAX, "the shared memory");
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
