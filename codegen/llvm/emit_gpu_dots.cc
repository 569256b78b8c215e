// Products of tiles: mma.sync for 16-bit operands, plain arithmetic from shared memory for others.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/exchange.h"
#include "codegen/llvm/emit_gpu.h"

namespace tenon::codegen {

namespace {

constexpr int kStep = 16;  // of mma.m16n8k16 along k

int round_up(int value, int to) { return (value + to - 1) / to * to; }

// In elements of 16 bits: an odd number of 16-byte units, so that eight rows lie in eight banks.
int matrix_pitch(int columns) { return (round_up(columns, 8) / 8 | 1) * 8; }

}  // namespace

void GpuEmitter::dot(const Operation& op) {
  if (auto operands = ring_dot(kernel_, definitions_, op, threads_)) {
    return multiply_ring(op, *operands);
  }
  if (op.integer > 0) {
    throw UserError(
        fmt::format("kernel @{}: groups of a dot are multiplied from stages, or from rows of "
                    "scratch that begin with whole units of 16 bytes, by 16 rows a warp",
                    kernel_.name));
  }
  if (op.tf32) {
    throw UserError(fmt::format(
        "kernel @{}: tf32 products multiply whole stages of rings in rows of 128 bytes, "
        "the right one turned, by 64 rows to 128 threads",
        kernel_.name));
  }
  if (is_tensor_core_dot(kernel_, op)) return tensor_core_dot(op);
  plain_dot(op, /*b_transposed=*/false);
}

void GpuEmitter::dot_i8(const Operation& op) { plain_dot(op, /*b_transposed=*/true); }

// One multiplication and addition per k, in order.
void GpuEmitter::plain_dot(const Operation& op, bool b_transposed) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]), &b = type(op.operands[2]);
  const Layout& layout = layouts_[op.results[0]];
  Tile sums = in_layout(op.operands[0], layout);
  int depth = a.shape[1], b_pitch = b.shape[1];
  int64_t a_bytes = round_up(static_cast<int>(a.elements()) * bit_width(a.dtype) / 8, 16);
  int64_t b_bytes = b.elements() * bit_width(b.dtype) / 8;
  Grid left{shared_.borrow(a_bytes + b_bytes), a_bytes, depth};
  Grid right{left.offset + a_bytes, b_bytes, b_pitch};
  barrier_before(left.offset, a_bytes + b_bytes, /*write=*/true);
  write_grid(left, tile(op.operands[1]), layouts_[op.operands[1]], a);
  write_grid(right, tile(op.operands[2]), layouts_[op.operands[2]], b);
  barrier_before(left.offset, a_bytes + b_bytes, /*write=*/false);

  std::vector<Place> places;
  for (int r = 0; r < layout.registers(); ++r) {
    Place at = place(layout, r, acc);
    if (at.live) {
      at.row = ir_.CreateSelect(at.live, at.row, number(0));
      at.column = ir_.CreateSelect(at.live, at.column, number(0));
    }
    places.push_back(at);
  }
  int width = b_transposed ? 1 : exchange_width(acc, layout, right.pitch, 0);
  auto add_product = [&](Value* k, Tile& out) {
    for (size_t r = 0; r < out.size(); r += static_cast<size_t>(width)) {
      const Place& at = places[r];
      Value* x = read_shared(a.dtype, left.offset, plus(times(at.row, depth), k));
      x = cast(a.dtype, acc.dtype, x);
      Value* place_b =
          b_transposed ? plus(times(at.column, b_pitch), k) : plus(times(k, b_pitch), at.column);
      Tile row = load_vector(b.dtype, shared_element(b.dtype, right.offset, place_b), width);
      for (size_t i = 0; i < row.size(); ++i) {
        Value* y = cast(b.dtype, acc.dtype, row[i]);
        Value*& sum = out[r + i];
        sum = is_floating(acc.dtype)
                  ? ir_.CreateIntrinsic(llvm::Intrinsic::fma, {x->getType()}, {x, y, sum})
                  : ir_.CreateAdd(sum, ir_.CreateMul(x, y));
      }
    }
  };
  int unrolled = 8;
  while (depth % unrolled != 0 || unrolled * layout.registers() > 512) {
    if (unrolled == 1) break;
    unrolled /= 2;
  }
  values_[op.results[0]] =
      counted_loop(depth / unrolled, sums, [&](Value* counter, const Tile& carried) {
        Tile out = carried;
        for (int i = 0; i < unrolled; ++i) add_product(plus(times(counter, unrolled), i), out);
        return out;
      });
}

struct GpuEmitter::Fragments {
  ProductOperand source;
  Grid grid;                        // in shared memory, or
  const Tile* registers = nullptr;  // sums of another product, which lie as operands already
  bool rows_are_k = false;          // of the grid
  int steps = 0;
};

// `other`: m or n.
void GpuEmitter::plan_fragments(Fragments& fragments, int depth, int other) {
  int whole_depth = round_up(depth, kStep), whole_other = round_up(other, 16);
  fragments.steps = whole_depth / kStep;
  fragments.grid.pitch = matrix_pitch(fragments.rows_are_k ? whole_other : whole_depth);
  int rows = fragments.rows_are_k ? whole_depth : whole_other;
  fragments.grid.bytes = fragments.registers ? 0 : int64_t{rows} * fragments.grid.pitch * 2;
}

// k is filled up with zeros; rows or columns past the tile only meet sums that nobody looks at.
void GpuEmitter::write_fragments(const Fragments& fragments, int depth, int other) {
  if (fragments.registers) return;
  for (const ProductOperand::Part& part : fragments.source.parts) {
    write_grid(fragments.grid, tile(part.id), layouts_[part.id], type(part.id), part.row,
               part.column);
  }
  int padding = fragments.steps * kStep - depth;
  if (padding == 0) return;
  if (fragments.rows_are_k) return fill_zero(fragments.grid, padding, 0, other, depth);
  fill_zero(fragments.grid, other, depth, padding);
}

void GpuEmitter::fill_zero(const Grid& grid, int rows, int first_column, int columns,
                           int first_row) {
  int count = rows * columns;
  for (int first = 0; first < count; first += threads_) {
    Value* element = plus(thread_, first);
    Value* present =
        first + threads_ <= count ? nullptr : ir_.CreateICmpULT(element, number(count));
    when(present, [&] {
      Value* row = plus(ir_.CreateUDiv(element, number(columns)), first_row);
      Value* column = plus(ir_.CreateURem(element, number(columns)), first_column);
      write_shared(DType::kU16, grid.offset, plus(times(row, grid.pitch), column), ir_.getInt16(0));
    });
  }
}

// Operands come into shared memory as rows that ldmatrix can read.
void GpuEmitter::tensor_core_dot(const Operation& op) {
  const Type &a = type(op.operands[1]), &acc = type(op.operands[0]);
  const Layout layout = layouts_[op.results[0]];
  int depth = a.shape[1], m = acc.shape[0], n = acc.shape[1];
  Tile sums = in_layout(op.operands[0], layout);

  Fragments left, right;
  left.source = product_operand(kernel_, definitions_, op.operands[1]);
  right.source = product_operand(kernel_, definitions_, op.operands[2]);
  left.rows_are_k = left.source.turned;
  right.rows_are_k = !right.source.turned;
  const Layout& a_layout = layouts_[op.operands[1]];
  if (a_layout.is_mma() && a_layout.warps_n == 1 && a_layout.warps_m == layout.warps_m &&
      depth % kStep == 0 && left.source.parts[0].id == op.operands[1]) {
    left.registers = &tile(op.operands[1]);
  }
  plan_fragments(left, depth, m);
  plan_fragments(right, depth, n);
  int64_t bytes = left.grid.bytes + right.grid.bytes;
  left.grid.offset = shared_.borrow(bytes);
  right.grid.offset = left.grid.offset + left.grid.bytes;
  barrier_before(left.grid.offset, bytes, /*write=*/true);
  write_fragments(left, depth, m);
  write_fragments(right, depth, n);
  barrier_before(left.grid.offset, bytes, /*write=*/false);

  for (int step = 0; step < left.steps; ++step) {
    std::vector<Tile> rows;
    for (int i = 0; i < layout.fragments_m(); ++i) {
      rows.push_back(left_fragment(left, layout, i, step));
    }
    Tile columns;
    for (int j = 0; j < layout.fragments_n(); j += 2) {
      for (Value* word : right_fragments(right, layout, j, step)) columns.push_back(word);
    }
    for (int i = 0; i < layout.fragments_m(); ++i) {
      for (int j = 0; j < layout.fragments_n(); ++j) {
        auto first = static_cast<size_t>(4 * (i * layout.fragments_n() + j));
        multiply_fragment(a.dtype, rows[static_cast<size_t>(i)],
                          std::span(columns).subspan(static_cast<size_t>(2 * j), 2),
                          std::span(sums).subspan(first, 4));
      }
    }
  }
  values_[op.results[0]] = std::move(sums);
}

// sums += left * right, 16x8 and 32 bytes along k: four words and two. f32 operands are tf32.
void GpuEmitter::multiply_fragment(DType dtype, std::span<Value* const> left,
                                   std::span<Value* const> right, std::span<Value*> sums) {
  bool is_f16 = dtype == DType::kF16;
  auto id = is_f16                  ? llvm::Intrinsic::nvvm_mma_m16n8k16_row_col_f32_f32
            : dtype == DType::kBF16 ? llvm::Intrinsic::nvvm_mma_m16n8k16_row_col_bf16
                                    : llvm::Intrinsic::nvvm_mma_m16n8k8_row_col_tf32;
  std::vector<Value*> arguments;
  for (std::span<Value* const> side : {left, right}) {
    for (Value* word : side) {
      arguments.push_back(is_f16 ? ir_.CreateBitCast(word, pair_type(dtype)) : word);
    }
  }
  arguments.insert(arguments.end(), sums.begin(), sums.end());
  Value* result = ir_.CreateIntrinsic(id, {}, arguments);
  for (unsigned c = 0; c < 4; ++c) sums[c] = ir_.CreateExtractValue(result, c);
}

// 16 rows and one step along k: four words.
GpuEmitter::Tile GpuEmitter::left_fragment(const Fragments& a, const Layout& sums, int row,
                                           int step) {
  if (a.registers) {
    auto first = static_cast<size_t>(4 * (2 * a.steps * row + 2 * step));
    Tile out;
    for (size_t half = 0; half < 2; ++half) {
      for (size_t pair = 0; pair < 2; ++pair) {
        size_t at = first + 4 * half + 2 * pair;
        out.push_back(pack_halves((*a.registers)[at], (*a.registers)[at + 1]));
      }
    }
    return out;
  }
  Value* warp = ir_.CreateURem(warp_, number(sums.warps_m));
  Value* first = plus(times(warp, sums.fragments_m() * 16), row * 16);
  Value* upper_half = times(ir_.CreateLShr(lane_, 4), 8);
  if (a.rows_are_k) {
    Value* k = plus(plus(ir_.CreateAnd(lane_, 7), upper_half), step * kStep);
    Value* at = plus(first, times(ir_.CreateAnd(ir_.CreateLShr(lane_, 3), 1), 8));
    return load_matrices(a.grid, k, at, 4, /*transposed=*/true);
  }
  Value* at = plus(first, ir_.CreateAnd(lane_, 15));
  return load_matrices(a.grid, at, plus(upper_half, step * kStep), 4, /*transposed=*/false);
}

// Two neighbouring fragments of 8 columns, or the last one: two words each.
GpuEmitter::Tile GpuEmitter::right_fragments(const Fragments& b, const Layout& sums, int fragment,
                                             int step) {
  Value* warp = ir_.CreateURem(ir_.CreateUDiv(warp_, number(sums.warps_m)), number(sums.warps_n));
  Value* n = plus(times(warp, sums.fragments_n() * 8), fragment * 8);
  int count = fragment + 1 < sums.fragments_n() ? 4 : 2;
  Value* next = times(ir_.CreateLShr(lane_, 4), 8);  // lanes of the second fragment
  if (count == 2) next = number(0);
  if (!b.rows_are_k) {
    Value* row = plus(plus(n, next), ir_.CreateAnd(lane_, 7));
    Value* k = plus(times(ir_.CreateAnd(ir_.CreateLShr(lane_, 3), 1), 8), step * kStep);
    return load_matrices(b.grid, row, k, count, /*transposed=*/false);
  }
  Value* k = plus(ir_.CreateAnd(lane_, 15), step * kStep);
  return load_matrices(b.grid, k, plus(n, next), count, /*transposed=*/true);
}

GpuEmitter::Tile GpuEmitter::load_matrices(const Grid& grid, Value* row, Value* column, int count,
                                           bool transposed) {
  using namespace llvm::Intrinsic;
  auto id = count == 4 ? (transposed ? nvvm_ldmatrix_sync_aligned_m8n8_x4_trans_b16
                                     : nvvm_ldmatrix_sync_aligned_m8n8_x4_b16)
                       : (transposed ? nvvm_ldmatrix_sync_aligned_m8n8_x2_trans_b16
                                     : nvvm_ldmatrix_sync_aligned_m8n8_x2_b16);
  Value* pointer = shared_element(DType::kU16, grid.offset, plus(times(row, grid.pitch), column));
  Value* loaded = ir_.CreateIntrinsic(id, {pointer->getType()}, {pointer});
  Tile out;
  for (int i = 0; i < count; ++i) {
    out.push_back(ir_.CreateExtractValue(loaded, static_cast<unsigned>(i)));
  }
  return out;
}

}  // namespace tenon::codegen
