// How tiles lie in LLVM values: pieces, rows and flat vectors.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/convert.h"
#include "base/error.h"
#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

bool has_packed_rows(const Type& type) {
  return type.shape.size() == 2 && type.shape[1] <= kPackedRow;
}

LineShape line_shape(const Type& type) {
  if (type.shape.size() < 2 || has_packed_rows(type)) {
    return {1, static_cast<int>(type.elements())};
  }
  return {type.shape[0], type.shape[1]};
}

std::vector<int> piece_widths(int lanes) {
  std::vector<int> widths;
  while (lanes > 0) {
    widths.push_back(static_cast<int>(std::bit_floor(static_cast<unsigned>(lanes))));
    lanes -= widths.back();
  }
  return widths;
}

llvm::Type* HostEmitter::vector_of(llvm::Type* element, int lanes) const {
  return llvm::FixedVectorType::get(element, static_cast<unsigned>(lanes));
}

HostEmitter::Tile HostEmitter::splat_pieces(Value* scalar, const Type& type) {
  if (type.shape.empty()) return {scalar};
  LineShape lines = line_shape(type);
  Tile line, out;
  for (int width : piece_widths(lines.lanes)) {
    line.push_back(ir_.CreateVectorSplat(static_cast<unsigned>(width), scalar));
  }
  for (int i = 0; i < lines.count; ++i) out.insert(out.end(), line.begin(), line.end());
  return out;
}

std::vector<llvm::Value*> HostEmitter::lines(const Tile& tile, const Type& type) {
  LineShape shape = line_shape(type);
  size_t pieces = tile.size() / static_cast<size_t>(shape.count);
  std::vector<Value*> out;
  for (size_t first = 0; first < tile.size(); first += pieces) {
    out.push_back(join({tile.begin() + first, tile.begin() + first + pieces}));
  }
  return out;
}

HostEmitter::Tile HostEmitter::from_lines(const std::vector<Value*>& lines) {
  Tile out;
  for (Value* line : lines) {
    int first = 0;
    auto lanes = llvm::cast<llvm::FixedVectorType>(line->getType())->getNumElements();
    for (int width : piece_widths(static_cast<int>(lanes))) {
      out.push_back(subvector(line, first, width));
      first += width;
    }
  }
  return out;
}

std::vector<llvm::Value*> HostEmitter::rows(const Tile& tile, const Type& type) {
  std::vector<Value*> all = lines(tile, type);
  if (!has_packed_rows(type)) return all;
  std::vector<Value*> out;
  for (int row = 0; row < type.shape[0]; ++row) {
    out.push_back(subvector(all[0], row * type.shape[1], type.shape[1]));
  }
  return out;
}

HostEmitter::Tile HostEmitter::from_rows(std::vector<Value*> rows, const Type& type) {
  return has_packed_rows(type) ? from_lines({join(std::move(rows))}) : from_lines(rows);
}

std::vector<HostEmitter::Tile> HostEmitter::row_pieces(const Tile& tile, const Type& type) {
  std::vector<Tile> out;
  if (has_packed_rows(type)) {
    for (Value* row : rows(tile, type)) out.push_back({row});
    return out;
  }
  size_t pieces = tile.size() / static_cast<size_t>(type.shape[0]);
  for (size_t first = 0; first < tile.size(); first += pieces) {
    out.emplace_back(tile.begin() + first, tile.begin() + first + pieces);
  }
  return out;
}

HostEmitter::Tile HostEmitter::from_row_pieces(std::vector<Tile> rows, const Type& type) {
  Tile out;
  for (Tile& row : rows) out.insert(out.end(), row.begin(), row.end());
  return has_packed_rows(type) ? from_lines({join(std::move(out))}) : out;
}

llvm::Value* HostEmitter::flat(const Tile& tile, const Type& type) {
  if (type.shape.empty()) return ir_.CreateVectorSplat(1, tile[0]);
  return join(tile);
}

HostEmitter::Tile HostEmitter::from_flat(Value* flat, const Type& type) {
  if (type.shape.empty()) return {lane(flat, 0)};
  LineShape shape = line_shape(type);
  std::vector<Value*> out;
  for (int i = 0; i < shape.count; ++i)
    out.push_back(subvector(flat, i * shape.lanes, shape.lanes));
  return from_lines(out);
}

llvm::Value* HostEmitter::subvector(Value* vector, int first, int count) {
  auto* type = llvm::cast<llvm::FixedVectorType>(vector->getType());
  if (first == 0 && static_cast<unsigned>(count) == type->getNumElements()) return vector;
  std::vector<int> lanes(static_cast<size_t>(count));
  std::iota(lanes.begin(), lanes.end(), first);
  return ir_.CreateShuffleVector(vector, lanes);
}

// Pairwise, so that the widths double and LLVM sees plain register concatenation.
llvm::Value* HostEmitter::join(std::vector<Value*> parts) {
  auto width = [](Value* v) {
    return llvm::cast<llvm::FixedVectorType>(v->getType())->getNumElements();
  };
  while (parts.size() > 1) {
    std::vector<Value*> joined;
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      unsigned left = width(parts[i]), right = width(parts[i + 1]), wide = std::max(left, right);
      std::vector<int> lanes;
      for (unsigned k = 0; k < left; ++k) lanes.push_back(static_cast<int>(k));
      for (unsigned k = 0; k < right; ++k) lanes.push_back(static_cast<int>(wide + k));
      // A shuffle takes vectors of one width: lanes past a narrower one are never read.
      auto widened = [&](Value* v) {
        std::vector<int> padded(wide, -1);
        std::iota(padded.begin(), padded.begin() + width(v), 0);
        return width(v) == wide ? v : ir_.CreateShuffleVector(v, padded);
      };
      joined.push_back(ir_.CreateShuffleVector(widened(parts[i]), widened(parts[i + 1]), lanes));
    }
    if (parts.size() % 2 == 1) joined.push_back(parts.back());
    parts = std::move(joined);
  }
  return parts[0];
}

llvm::Value* HostEmitter::lane(Value* vector, int64_t index) {
  if (!vector->getType()->isVectorTy()) return vector;
  return ir_.CreateExtractElement(vector, static_cast<uint64_t>(index));
}

llvm::Value* HostEmitter::in_chunks(Value* vector, int lanes,
                                    const std::function<Value*(Value*)>& chunk) {
  int count =
      static_cast<int>(llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements());
  std::vector<Value*> parts;
  for (int first = 0; first < count; first += lanes) {
    std::vector<int> order(static_cast<size_t>(lanes), -1);
    std::iota(order.begin(), order.begin() + std::min(lanes, count - first), first);
    bool whole = first == 0 && count == lanes;
    parts.push_back(chunk(whole ? vector : ir_.CreateShuffleVector(vector, order)));
  }
  return subvector(join(std::move(parts)), 0, count);
}

}  // namespace tenon::codegen
