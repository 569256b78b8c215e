#include "distributed/sharding/cut_tensor.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

namespace tenon::distributed {
namespace {

// Elements narrower than a byte never cross one: their widths divide 8.
void copy_bits(std::byte* to, int64_t to_bit, const std::byte* from, int64_t from_bit, int64_t bits,
               int width) {
  if (to_bit % 8 == 0 && from_bit % 8 == 0 && bits >= 8) {
    const int64_t whole = bits / 8;
    std::memcpy(to + to_bit / 8, from + from_bit / 8, static_cast<size_t>(whole));
    to_bit += whole * 8;
    from_bit += whole * 8;
    bits -= whole * 8;
  }
  if (bits == 0) return;
  const auto mask = static_cast<unsigned>((1 << width) - 1);
  for (int64_t done = 0; done < bits; done += width) {
    const int64_t source = from_bit + done, target = to_bit + done;
    const auto element = (std::to_integer<unsigned>(from[source / 8]) >> (source % 8)) & mask;
    to[target / 8] |= static_cast<std::byte>(element << (target % 8));
  }
}

bool is_whole(const Pieces& pieces, int64_t size) {
  return pieces.size() == 1 && pieces[0] == Range{0, size};
}

std::shared_ptr<ir::Tensor> empty_like(const ir::Tensor& tensor, std::vector<int64_t> dims) {
  auto part = std::make_shared<ir::Tensor>(tensor);
  part->facts = std::make_shared<ir::TensorFacts>();  // those of the whole tell nothing of it
  part->dims = std::move(dims);
  part->bytes = storage_bytes(part->dtype, part->elements());
  return part;
}

void allocate(ir::Tensor& part) {
  const auto bytes = std::make_shared<std::vector<std::byte>>(part.bytes);
  part.data = bytes->data();
  part.owner = bytes;
}

}  // namespace

ir::TensorPtr take(const ir::Tensor& tensor, const Rows& from, const Pieces& rows,
                   const Pieces& columns, int64_t row_bits, std::vector<int64_t> dims) {
  auto part = empty_like(tensor, std::move(dims));
  if (!tensor.stands_for.empty()) {
    if (part->bytes > tensor.bytes) allocate(*part);
    return part;
  }
  const int64_t first_bit = rows.empty() ? 0 : rows[0].begin * from.row_bits;
  if (rows.size() == 1 && is_whole(columns, from.columns) && row_bits == from.row_bits &&
      first_bit % 8 == 0) {
    part->data += first_bit / 8;
    return part;
  }
  auto bytes = std::make_shared<std::vector<std::byte>>(part->bytes);
  int64_t row = 0;
  for (const Range& range : rows) {
    for (int64_t source = range.begin; source < range.end; ++source, ++row) {
      int64_t at = row * row_bits;
      for (const Range& piece : columns) {
        const int64_t bits = piece.size() * from.bits;
        copy_bits(bytes->data(), at, tensor.data, source * from.row_bits + piece.begin * from.bits,
                  bits, from.bits);
        at += bits;
      }
    }
  }
  part->data = bytes->data();
  part->owner = std::move(bytes);
  return part;
}

ir::TensorPtr take(const ir::Tensor& tensor, size_t axis, const Pieces& pieces) {
  const auto product = [&](size_t begin, size_t end) {
    return std::accumulate(tensor.dims.begin() + static_cast<ptrdiff_t>(begin),
                           tensor.dims.begin() + static_cast<ptrdiff_t>(end), int64_t{1},
                           std::multiplies<>());
  };
  const int64_t outer = product(0, axis), inner = product(axis + 1, tensor.dims.size());
  const int64_t size = tensor.dims[axis];
  std::vector<int64_t> dims = tensor.dims;
  dims[axis] = length(pieces);
  const int bits = bit_width(tensor.dtype);
  if (outer == 1) {
    const Rows rows{size, inner, bits, inner * bits};
    return take(tensor, rows, pieces, {{0, inner}}, rows.row_bits, std::move(dims));
  }
  const Rows rows{outer, size * inner, bits, size * inner * bits};
  const int64_t row_bits = dims[axis] * inner * bits;
  return take(tensor, rows, {{0, outer}}, times({pieces}, inner)[0], row_bits, std::move(dims));
}

}  // namespace tenon::distributed
