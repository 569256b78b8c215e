#include "tests/kernels/device/stub/tensor_maps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "codegen/product_operands.h"
#include "tests/kernels/device/stub/exports.h"

namespace tenon::stub {
namespace {

using device::TensorMap;

// What the stub writes into the 128 bytes.
struct EncodedDescriptor {
  static constexpr uint64_t kMark = 0x70616d206e6f6e65;
  uint64_t mark = 0;
  Address base = 0;
  uint64_t columns = 0, rows = 0, row_bytes = 0;
  uint32_t box_columns = 0, box_rows = 0;
  uint32_t element_bytes = 0;
  uint32_t groups = 0;  // of a TMA descriptor with three dimensions
  bool tf32 = false;
};
static_assert(sizeof(EncodedDescriptor) <= sizeof(TensorMap));

// A matrix that the kernel loads through TMA.
struct FetchedMatrix {
  std::string buffer;
  Address base = 0;
  uint64_t columns = 0, rows = 0, row_bytes = 0;
  uint32_t stage_columns = 0, stage_rows = 0, element_bytes = 0, groups = 0;
  bool tf32 = false;

  // A stage wider than a box is filled by several.
  bool is_described_by(const EncodedDescriptor& descriptor) const {
    return descriptor.base == base && descriptor.columns == columns && descriptor.rows == rows &&
           descriptor.row_bytes == row_bytes && descriptor.element_bytes == element_bytes &&
           descriptor.groups == groups && descriptor.tf32 == tf32 &&
           stage_columns % descriptor.box_columns == 0 &&
           stage_rows % (descriptor.box_rows * std::max(1u, groups)) == 0;
  }
};

class FetchedMatrices {
 public:
  FetchedMatrices(const codegen::Kernel& kernel, std::span<const uint64_t> arguments)
      : kernel_(kernel), rings_of_tf32_(codegen::rings_of_tf32(kernel)) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      numbers_[static_cast<codegen::ValueId>(i)] = arguments[i];
    }
    visit(kernel.body);
  }
  const std::vector<FetchedMatrix>& all() const { return found_; }

 private:
  void visit(const codegen::Region& region) {
    for (const codegen::Operation& operation : region.operations) {
      if (operation.op == codegen::Op::kIndexConstant) {
        numbers_[operation.results[0]] = static_cast<uint64_t>(operation.integer);
      }
      if (operation.op == codegen::Op::kTmaLoad) add(operation.operands, operation.integer);
      for (const codegen::Region& inner : operation.regions) visit(inner);
    }
  }

  // ring, stage, buffer, row, column, rows, columns, stride
  void add(const std::vector<codegen::ValueId>& operands, int64_t groups) {
    const codegen::Type& ring = kernel_.types.at(operands[0]);
    FetchedMatrix matrix;
    matrix.buffer = kernel_.parameters.at(operands[2]).name;
    matrix.base = numbers_.at(operands[2]);
    matrix.rows = numbers_.at(operands[5]);
    matrix.columns = numbers_.at(operands[6]);
    matrix.element_bytes = static_cast<uint32_t>(bit_width(ring.dtype) / 8);
    matrix.row_bytes = numbers_.at(operands[7]) * matrix.element_bytes;
    matrix.stage_rows = static_cast<uint32_t>(ring.shape.at(0));
    matrix.stage_columns = static_cast<uint32_t>(ring.shape.at(1));
    matrix.groups = static_cast<uint32_t>(groups);
    matrix.tf32 = rings_of_tf32_.contains(operands[0]);
    found_.push_back(std::move(matrix));
  }

  const codegen::Kernel& kernel_;
  std::set<codegen::ValueId> rings_of_tf32_;
  std::map<codegen::ValueId, uint64_t> numbers_;  // of parameters and constants
  std::vector<FetchedMatrix> found_;
};

std::string text(const EncodedDescriptor& descriptor) {
  return fmt::format(
      "{} x {} elements of {} bytes{} at {:#x}, rows {} bytes apart, boxes of {} x {}",
      descriptor.rows, descriptor.columns, descriptor.element_bytes,
      descriptor.tf32 ? " (tf32)" : "", descriptor.base, descriptor.row_bytes, descriptor.box_rows,
      descriptor.box_columns);
}

// Zeros stand for the TMA descriptor of a matrix without rows, which the driver does not encode.
bool is_of_nothing(const void* descriptor) {
  static constexpr TensorMap kNothing{};
  return std::memcmp(descriptor, &kNothing, sizeof(kNothing)) == 0;
}

}  // namespace

std::vector<size_t> array_parameters(std::string_view ptx) {
  std::vector<size_t> sizes;
  const size_t begin = ptx.find(".entry");
  if (begin == std::string_view::npos) return sizes;
  const size_t end = ptx.find(')', begin);
  for (size_t at = ptx.find('[', begin); at < end; at = ptx.find('[', at + 1)) {
    sizes.push_back(std::strtoul(ptx.data() + at + 1, nullptr, 10));
  }
  return sizes;
}

Result check_tma_descriptors(World& world, const codegen::Kernel& kernel,
                             std::span<void* const> descriptors,
                             std::span<const uint64_t> arguments, const std::string& work) {
  const FetchedMatrices fetched(kernel, arguments);
  const bool some_are_empty = std::ranges::count(fetched.all(), 0u, &FetchedMatrix::rows) > 0;
  std::vector<EncodedDescriptor> encoded(descriptors.size());
  for (size_t i = 0; i < descriptors.size(); ++i) {
    std::memcpy(&encoded[i], descriptors[i], sizeof(EncodedDescriptor));
    if (encoded[i].mark == EncodedDescriptor::kMark ||
        (some_are_empty && is_of_nothing(descriptors[i]))) {
      continue;
    }
    world.report(fmt::format("{}: TMA descriptor {} was never encoded", work, i));
    return kInvalidValue;
  }
  if (descriptors.empty()) return kSuccess;  // its copies need none
  for (const FetchedMatrix& matrix : fetched.all()) {
    if (matrix.rows == 0) continue;  // nothing can be fetched of it
    const auto fits = [&](const EncodedDescriptor& descriptor) {
      return matrix.is_described_by(descriptor);
    };
    if (std::ranges::any_of(encoded, fits)) continue;
    world.report(fmt::format(
        "{}: no TMA descriptor is of argument %{} ({} x {} at {:#x}); the first is of {}", work,
        matrix.buffer, matrix.rows, matrix.columns, matrix.base, text(encoded[0])));
    return kInvalidValue;
  }
  return kSuccess;
}

namespace {

struct Rule {
  bool broken;
  const char* words;
};

// `swizzled_bytes`: 0 for none; `piece_bytes`: of rows of boxes that one such stretch covers.
Result check_encoding(World& world, const EncodedDescriptor& descriptor, uint32_t swizzled_bytes,
                      uint32_t piece_bytes) {
  constexpr uint64_t kMostSize = uint64_t{1} << 32, kMostStride = uint64_t{1} << 40;
  constexpr uint32_t kMostBox = 256, kAlignment = 16;
  const uint32_t box_bytes = descriptor.box_columns * descriptor.element_bytes;
  const Rule rules[] = {
      {descriptor.base % kAlignment != 0, "its base is not aligned to 16 bytes"},
      {descriptor.row_bytes % kAlignment != 0, "its rows are not a multiple of 16 bytes apart"},
      {descriptor.row_bytes >= kMostStride, "its rows are 2^40 bytes apart, or more"},
      {descriptor.rows == 0 || descriptor.columns == 0, "it is empty"},
      {descriptor.rows > kMostSize || descriptor.columns > kMostSize,
       "it has more than 2^32 rows or columns"},
      {descriptor.box_rows == 0 || descriptor.box_columns == 0, "its boxes are empty"},
      {descriptor.box_rows > kMostBox || descriptor.box_columns > kMostBox,
       "its boxes exceed 256 elements"},
      {box_bytes % kAlignment != 0, "a row of its boxes is no multiple of 16 bytes"},
      {swizzled_bytes != 0 && piece_bytes > swizzled_bytes,
       "a row of its boxes is wider than what is swizzled"},
  };
  for (const Rule& rule : rules) {
    if (!rule.broken) continue;
    world.report(fmt::format("a TMA descriptor of {}: {}", text(descriptor), rule.words));
    return kInvalidValue;
  }
  const size_t bytes =
      (descriptor.rows - 1) * descriptor.row_bytes + descriptor.columns * descriptor.element_bytes;
  const Allocation* held = audit(world, "a TMA descriptor", "its matrix", descriptor.base, bytes);
  return held == nullptr ? kInvalidValue : kSuccess;
}

}  // namespace
}  // namespace tenon::stub

using namespace tenon::stub;
using tenon::device::TensorMap;

TENON_STUB_EXPORT Result cuTensorMapEncodeTiled(TensorMap* to, int type, uint32_t rank, void* base,
                                                const uint64_t* sizes, const uint64_t* strides,
                                                const uint32_t* box, const uint32_t* steps,
                                                int interleaving, int swizzle, int, int fill) {
  return call(__func__, kContext, [&](World& world) -> Result {
    constexpr uint32_t kTypeBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4};
    constexpr int kTf32 = 11;
    constexpr uint32_t kSwizzledBytes[] = {0, 32, 64, 128};
    if (reinterpret_cast<uintptr_t>(to) % alignof(TensorMap) != 0) {
      world.report("a TMA descriptor is encoded at an address that is not aligned to 64 bytes");
      return kInvalidValue;
    }
    if (rank < 2 || rank > 3 || type < 0 || static_cast<size_t>(type) >= std::size(kTypeBytes) ||
        swizzle < 0 || static_cast<size_t>(swizzle) >= std::size(kSwizzledBytes) || steps[0] != 1 ||
        steps[1] != 1 || interleaving != 0 || fill != 0) {
      world.report(
          "a TMA descriptor of another kind than ours: 2 or 3 dimensions, plain, zeros outside");
      return kInvalidValue;
    }
    const uint32_t piece_bytes = box[0] * kTypeBytes[type];
    // Rows of several pieces, those of a row before the next, or boxes side by side.
    const bool pieces =
        rank == 3 && strides[0] == piece_bytes && strides[1] >= sizes[1] * piece_bytes;
    const bool grouped = rank == 3 && !pieces;
    if (pieces && (sizes[0] != box[0] || sizes[1] % box[1] != 0 || steps[2] != 1)) {
      world.report("a TMA descriptor of rows in pieces that do not make whole boxes");
      return kInvalidValue;
    }
    if (grouped && (sizes[0] != box[0] || strides[1] != sizes[0] * kTypeBytes[type] ||
                    box[2] == 0 || box[2] > 256 || steps[2] != 1)) {
      world.report("a TMA descriptor with three dimensions whose boxes do not lie side by side");
      return kInvalidValue;
    }
    EncodedDescriptor descriptor{EncodedDescriptor::kMark,
                                 reinterpret_cast<Address>(base),
                                 grouped ? sizes[0] * sizes[2] : sizes[0],
                                 sizes[1],
                                 strides[0],
                                 box[0],
                                 box[1],
                                 kTypeBytes[type],
                                 grouped ? box[2] : 0,
                                 type == kTf32};
    if (pieces) {
      descriptor.columns = sizes[0] * sizes[1];
      descriptor.rows = sizes[2];
      descriptor.row_bytes = strides[1];
      descriptor.box_columns = box[0] * box[1];
      descriptor.box_rows = box[2];
    }
    if (const Result result =
            check_encoding(world, descriptor, kSwizzledBytes[swizzle], piece_bytes)) {
      return result;
    }
    std::memcpy(to->words, &descriptor, sizeof(descriptor));
    return kSuccess;
  });
}
