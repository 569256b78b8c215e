#include "kernels/llvm/scaled_dot/packing_launches.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/llvm/scaled_dot/pack_kernel.h"
#include "kernels/llvm/scaled_dot/weight_source.h"

namespace tenon::kernels {
namespace {

using Source = DevicePacking::Source;

// What the file has of a weight: its codes, scales or zero points.
struct Matrix {
  std::span<const std::byte> bytes;
  int bits = 0;  // of an element
  ElementStrides strides;
  bool by_column = false;  // all of K of one column (N), then of the next
  Source table = {};

  bool is_shared() const { return strides.column == 0; }  // by all columns
  // Those columns, or all of them where they are not stored one by one. `first` is a multiple of 8.
  Source columns(int64_t first, int64_t count) const {
    if (is_shared() || !by_column) return {bytes};
    const auto begin = static_cast<size_t>(first * strides.column * bits / 8);
    const auto end = static_cast<size_t>(((first + count) * strides.column * bits + 7) / 8);
    return {bytes.subspan(begin, std::min(end, bytes.size()) - begin)};
  }
  bool has_small_indices() const {
    const int64_t most = kFragmentRows * strides.column + kFragmentRows * strides.k;
    return most < std::numeric_limits<int32_t>::max() / 2;
  }
};

Matrix codes_of(const ir::Graph& graph, const DotPart& part) {
  const ir::Tensor& tensor = *graph.value(part.problem.dot.b).constant;
  const int64_t row = stored_row(graph, part.problem);
  return {{tensor.data, tensor.bytes},
          bit_width(part.problem.b_type),
          element_strides(part.problem, row),
          part.problem.dot.b_k_last};
}

// `bits(stored)`: what is packed.
template <typename Bits>
Matrix side_of(const DotPart& part, const ScaleReader& reader, bool holds_codes, const Bits& bits) {
  Matrix side{reader.stored_bytes(), bit_width(reader.stored_type()), reader.strides(),
              part.problem.dot.b_k_last};
  if (!StoredPart::has_table(reader.stored_type())) return side;
  const size_t entries = size_t{1} << side.bits, bytes = entries * sizeof(uint32_t);
  const std::shared_ptr<std::byte[]> table = aligned_bytes(bytes);
  for (size_t code = 0; code < entries; ++code) {
    const uint32_t entry = bits(code) & (holds_codes ? 0xff : 0xffffffff);
    std::memcpy(table.get() + code * sizeof entry, &entry, sizeof entry);
  }
  side.table = {{table.get(), bytes}, table};
  return side;
}

// One section's launches.
class SectionPacking {
 public:
  SectionPacking(const ir::Graph& graph, const DotSection& section, bool only_sides)
      : section_(section), task_{section.parts[0].layout, {}, only_sides} {
    for (const DotPart& part : section.parts) add_part(graph, part);
  }

  Support support() const {
    if (Support known = can_pack(task_); !known) return known;
    const bool small = std::ranges::all_of(matrices_, &Matrix::has_small_indices);
    return small ? Support::yes() : Support::no("rows are too long for 32-bit indices");
  }

  void add_pieces(size_t piece_bytes, DevicePacking& packing) const {
    const auto kernel = pack_kernel(task_);
    const int64_t units = section_.units(), together = units_together(piece_bytes);
    for (int64_t first = 0; first < units; first += together) {
      packing.pieces.push_back(piece(first, std::min(together, units - first)));
      packing.pieces.back().kernel = kernel;
    }
  }

 private:
  void add_part(const ir::Graph& graph, const DotPart& part) {
    const FragmentLayout& layout = part.layout;
    StoredPart stored;
    if (!task_.only_sides) matrices_.push_back(codes_of(graph, part));
    if (!layout.is_plain()) stored.flip = flipped_bits(part.problem, layout);
    if (task_.has_sides() && layout.scale.words() > 0) {
      const ScaleReader scales = ScaleReader::scales(graph, part.problem);
      stored.scale = scales.stored_type();
      matrices_.push_back(side_of(part, scales, layout.scale.holds_codes(),
                                  [&](uint64_t code) { return scale_bits(layout, scales, code); }));
    }
    if (task_.has_sides() && layout.zero.words() > 0) {
      const ScaleReader zeros = ScaleReader::zeros(graph, part.problem);
      stored.zero = zeros.stored_type();
      matrices_.push_back(side_of(part, zeros, layout.zero.holds_codes(), [&](uint64_t code) {
        return zero_bits(part.problem, layout, zeros, code);
      }));
    }
    task_.parts.push_back(stored);
  }

  int64_t steps() const { return task_.only_sides ? task_.layout.blocks() : task_.layout.steps(); }
  int64_t columns_of_unit() const {
    return kFragmentRows / static_cast<int64_t>(section_.parts.size());
  }

  // Rows of units whose sources are about `piece_bytes`.
  int64_t units_together(size_t piece_bytes) const {
    size_t of_unit = 0;
    for (const Matrix& matrix : matrices_) {
      if (!matrix.by_column && !matrix.is_shared()) return section_.units();
      of_unit += matrix.columns(0, columns_of_unit()).bytes.size();
    }
    return std::max<int64_t>(1, static_cast<int64_t>(piece_bytes / std::max<size_t>(1, of_unit)));
  }

  DevicePacking::Piece piece(int64_t first_unit, int64_t units) const {
    const FragmentLayout& layout = task_.layout;
    const int64_t first = first_unit * columns_of_unit();
    const int64_t columns = std::min(section_.n() - first, units * columns_of_unit());
    DevicePacking::Piece piece;
    piece.indices = {columns, layout.k, steps()};
    if (task_.has_sides() && layout.side_words() > 0) piece.indices.push_back(layout.block);
    for (const Matrix& matrix : matrices_) {
      piece.sources.push_back(matrix.columns(first, columns));
      if (matrix.table.owned != nullptr) piece.sources.push_back(matrix.table);
      piece.indices.push_back(matrix.strides.column);
      piece.indices.push_back(matrix.strides.k);
    }
    piece.tasks = units * steps();
    const int64_t words_before = (section_.first_unit + first_unit) * steps() * task_.words();
    piece.first_byte = static_cast<size_t>(words_before) * sizeof(uint32_t);
    return piece;
  }

  const DotSection& section_;
  PackTask task_;
  std::vector<Matrix> matrices_;  // of all parts, as pack_kernel takes them
};

DevicePacking pack_on_device(const ir::Graph& graph, const DotSections& dots, bool only_sides,
                             size_t piece_bytes) {
  DevicePacking packing;
  for (const DotSection& section : dots.sections) {
    const SectionPacking own(graph, section, only_sides);
    if (!own.support()) return {};
    own.add_pieces(piece_bytes, packing);
  }
  return packing;
}

}  // namespace

DevicePacking pack_units_on_device(const ir::Graph& graph, const DotSections& dots,
                                   size_t piece_bytes) {
  return pack_on_device(graph, dots, /*only_sides=*/false, piece_bytes);
}

DevicePacking pack_sides_on_device(const ir::Graph& graph, const DotSections& dots,
                                   size_t piece_bytes) {
  return pack_on_device(graph, dots, /*only_sides=*/true, piece_bytes);
}

}  // namespace tenon::kernels
