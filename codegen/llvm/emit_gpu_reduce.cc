// Reductions: in a thread's registers, then by shuffles in a warp, then through shared memory.
#include <llvm/IR/IRBuilder.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "codegen/llvm/emit_gpu.h"

namespace tenon::codegen {

GpuEmitter::Tile GpuEmitter::reduce(const Operation& op) {
  const Type& from = type(op.operands[0]);
  const Layout& layout = layouts_[op.operands[0]];
  int along = from.shape[static_cast<size_t>(op.axis)];
  if (from.elements() == 1) return {tile(op.operands[0])[0]};
  if (along == 1) {  // nothing to add up
    const Layout& target = layouts_[op.results[0]];
    Tile in = tile(op.operands[0]);
    if (auto held = registers_in_place(layout, target)) {
      Tile out;
      for (int reg : *held) out.push_back(in[static_cast<size_t>(reg)]);
      return out;
    }
    auto place = [&](Value*, Value* column) {
      return op.axis == 0 ? std::pair<Value*, Value*>{number(0), column}
                          : std::pair<Value*, Value*>{column, number(0)};
    };
    return redistribute(in, layout, from, target, type(op.results[0]), place, from.shape.back());
  }
  if (from.shape.size() == 1) return reduce_block(op);
  if (layout.is_mma()) return reduce_mma(op);
  if (auto in_warp = reduced_in_warp(layout, op.axis)) return reduce_bits(op, *in_warp);
  if (auto out = op.axis == 1 ? reduce_runs(op) : reduce_waves(op)) return *out;
  return reduce_in_shared(op);
}

// x combined with this is x.
llvm::Value* GpuEmitter::identity(Fn fn, DType dtype) {
  llvm::Type* element = element_type(dtype);
  bool real = is_floating(dtype);
  auto bits = static_cast<unsigned>(bit_width(dtype));
  switch (fn) {
    case Fn::kAdd:
      return real ? llvm::ConstantFP::get(element, -0.0) : llvm::ConstantInt::get(element, 0);
    case Fn::kMul:
      return real ? llvm::ConstantFP::get(element, 1.0) : llvm::ConstantInt::get(element, 1);
    case Fn::kMin:
    case Fn::kMax: {
      bool is_max = fn == Fn::kMax;
      if (real) return llvm::ConstantFP::getInfinity(element, /*Negative=*/is_max);
      if (!is_signed(dtype)) {
        return is_max ? llvm::Constant::getNullValue(element)
                      : llvm::Constant::getAllOnesValue(element);
      }
      return llvm::ConstantInt::get(element, is_max ? llvm::APInt::getSignedMinValue(bits)
                                                    : llvm::APInt::getSignedMaxValue(bits));
    }
    case Fn::kAnd:
      return llvm::Constant::getAllOnesValue(element);
    default:  // kOr
      return llvm::Constant::getNullValue(element);
  }
}

llvm::Value* GpuEmitter::fold(Fn fn, DType dtype, Value* sum, Value* next) {
  return sum ? binary(fn, dtype, sum, next) : next;
}

// A whole tile of rank 1 to one element, the same in all threads.
GpuEmitter::Tile GpuEmitter::reduce_block(const Operation& op) {
  const Type& from = type(op.operands[0]);
  const Layout& layout = layouts_[op.operands[0]];
  const Tile& in = tile(op.operands[0]);
  DType dtype = from.dtype;
  Value* first = owner(layout);
  std::vector<Value*> parts;
  for (int r = 0; r < layout.registers(); ++r) {
    Value* counts = both(first, place(layout, r, from).live);
    Value* value = in[static_cast<size_t>(r)];
    parts.push_back(counts ? ir_.CreateSelect(counts, value, identity(op.fn, dtype)) : value);
  }
  while (parts.size() > 1) {  // a tree: shorter chains and smaller rounding errors
    std::vector<Value*> next;
    for (size_t i = 0; i + 1 < parts.size(); i += 2) {
      next.push_back(binary(op.fn, dtype, parts[i], parts[i + 1]));
    }
    if (parts.size() % 2 == 1) next.push_back(parts.back());
    parts = std::move(next);
  }
  Value* sum = parts[0];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    sum = binary(op.fn, dtype, sum, shuffle_xor(sum, distance));
  }
  int warps = threads_ / kWarp;
  if (warps == 1) return {sum};
  Grid grid = make_grid(dtype, 1, warps);
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  when(ir_.CreateICmpEQ(lane_, number(0)), [&] { write_shared(dtype, grid.offset, warp_, sum); });
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  Value* total = nullptr;
  for (int warp = 0; warp < warps; ++warp) {
    total = fold(op.fn, dtype, total, read_shared(dtype, grid.offset, number(warp)));
  }
  return {total};
}

GpuEmitter::Tile GpuEmitter::sum_parts(const Operation& op, const Grid& grid, int parts,
                                       int part_stride, int element_stride, const Layout& result) {
  const Type& to = type(op.results[0]);
  DType dtype = to.dtype;
  Tile out;
  std::vector<Value*> first;
  for (int r = 0; r < result.registers(); ++r) {
    Place at = place(result, r, to);
    Value* element = at.live ? ir_.CreateSelect(at.live, at.column, number(0)) : at.column;
    first.push_back(times(element, element_stride));
    out.push_back(read_shared(dtype, grid.offset, first.back()));
  }
  if (parts == 1) return out;
  constexpr int kUnrolled = 16;
  auto add_part = [&](Value* distance, Tile sums) {
    for (size_t r = 0; r < sums.size(); ++r) {
      Value* part = read_shared(dtype, grid.offset, plus(first[r], distance));
      sums[r] = binary(op.fn, dtype, sums[r], part);
    }
    return sums;
  };
  if (parts <= kUnrolled) {
    for (int p = 1; p < parts; ++p) out = add_part(number(int64_t{p} * part_stride), out);
    return out;
  }
  return counted_loop(parts - 1, out, [&](Value* counter, const Tile& sums) {
    return add_part(times(plus(counter, 1), part_stride), sums);
  });
}

// Along a row: neighbours in a register pair, then in a quad. Along a column: the other lanes.
GpuEmitter::Tile GpuEmitter::reduce_mma(const Operation& op) {
  const Type &from = type(op.operands[0]), &to = type(op.results[0]);
  const Layout& layout = layouts_[op.operands[0]];
  const Tile& in = tile(op.operands[0]);
  DType dtype = from.dtype;
  bool along_row = op.axis == 1;
  Layout result = along_row ? layout.rows_of() : layout.columns_of();
  Tile sums(static_cast<size_t>(result.registers()), nullptr);
  for (int r = 0; r < layout.registers(); ++r) {
    int fragment = r / 4, place_in = r % 4;
    int slot = along_row ? fragment / layout.fragments_n() * 2 + place_in / 2
                         : fragment % layout.fragments_n() * 2 + place_in % 2;
    Value* value = in[static_cast<size_t>(r)];
    if (Value* live = place(layout, r, from).live) {
      value = ir_.CreateSelect(live, value, identity(op.fn, dtype));
    }
    sums[static_cast<size_t>(slot)] = fold(op.fn, dtype, sums[static_cast<size_t>(slot)], value);
  }
  std::vector<int> distances = along_row ? std::vector{1, 2} : std::vector{4, 8, 16};
  for (Value*& sum : sums) {
    for (int distance : distances) sum = binary(op.fn, dtype, sum, shuffle_xor(sum, distance));
  }
  int parts = along_row ? layout.warps_n : layout.warps_m;
  if (parts == 1) return convert(sums, result, layouts_[op.results[0]], to);
  int size = to.shape[0];
  Grid grid = make_grid(dtype, parts, size);
  Value* part = along_row ? ir_.CreateURem(ir_.CreateUDiv(warp_, number(layout.warps_m)),
                                           number(layout.warps_n))
                          : ir_.CreateURem(warp_, number(layout.warps_m));
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  for (int r = 0; r < result.registers(); ++r) {
    Place at = place(result, r, to);
    when(at.live, [&] {
      write_shared(dtype, grid.offset, plus(times(part, size), at.column),
                   sums[static_cast<size_t>(r)]);
    });
  }
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  return sum_parts(op, grid, parts, size, 1, layouts_[op.results[0]]);
}

// A thread's own registers, in a few chains so that none is long, then those of the lanes that hold
// the rest.
GpuEmitter::Tile GpuEmitter::reduce_bits(const Operation& op, const WarpReduction& reduction) {
  const Layout& layout = layouts_[op.operands[0]];
  const Tile& in = tile(op.operands[0]);
  DType dtype = type(op.results[0]).dtype;
  constexpr size_t kChains = 4;
  auto registers = static_cast<size_t>(reduction.result.registers());
  std::vector<Tile> chains(registers, Tile(kChains, nullptr));
  std::vector<size_t> counts(registers);
  for (int r = 0; r < layout.registers(); ++r) {
    int64_t element = layout.element_of(0, r);
    int64_t wanted = op.axis == 1 ? element / layout.columns : element % layout.columns;
    size_t slot = 0;
    while (reduction.result.element_of(0, static_cast<int>(slot)) != wanted) ++slot;
    Value*& sum = chains[slot][counts[slot]++ % kChains];
    sum = fold(op.fn, dtype, sum, in[static_cast<size_t>(r)]);
  }
  Tile sums;
  for (const Tile& chain : chains) {
    Value* sum = nullptr;
    for (Value* part : chain) sum = part ? fold(op.fn, dtype, sum, part) : sum;
    sums.push_back(sum);
  }
  for (Value*& sum : sums) {
    for (int distance : reduction.distances) {
      sum = binary(op.fn, dtype, sum, shuffle_xor(sum, distance));
    }
  }
  return convert(sums, reduction.result, layouts_[op.results[0]], type(op.results[0]));
}

// Along the rows of a dealt tile whose runs do not cross rows: a run, then neighbouring lanes.
std::optional<GpuEmitter::Tile> GpuEmitter::reduce_runs(const Operation& op) {
  const Type& from = type(op.operands[0]);
  const Layout& layout = layouts_[op.operands[0]];
  const Tile& in = tile(op.operands[0]);
  DType dtype = from.dtype;
  int columns = from.shape[1], run = layout.run;
  if (layout.kind != Layout::Kind::kDealt || layout.elements() < threads_ || columns % run != 0) {
    return std::nullopt;
  }
  int wave = threads_ * run;
  // Where a row takes several whole waves, a thread adds up its share of the row first.
  int waves_per_row = columns % wave == 0 ? columns / wave : 1;
  int lanes = std::min(kWarp, (columns / run) & -(columns / run));
  int covered = lanes * run * waves_per_row;  // elements of a row that one partial sum stands for
  int parts = columns / covered;
  Grid grid = make_grid(dtype, from.shape[0], parts);
  std::vector<std::pair<Value*, Value*>> partial;  // where it belongs, what it is
  std::vector<Value*> lives;
  for (int chunk = 0; chunk * run < layout.registers(); chunk += waves_per_row) {
    Value* sum = nullptr;
    for (int r = chunk * run; r < (chunk + waves_per_row) * run; ++r) {
      sum = fold(op.fn, dtype, sum, in[static_cast<size_t>(r)]);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
      sum = binary(op.fn, dtype, sum, shuffle_xor(sum, distance));
    }
    Place at = place(layout, chunk * run, from);
    Value* part = ir_.CreateUDiv(at.column, number(lanes * run));
    partial.emplace_back(plus(times(at.row, parts), part), sum);
    lives.push_back(at.live);
  }
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  Value* leads =
      lanes > 1 ? ir_.CreateICmpEQ(ir_.CreateAnd(lane_, number(lanes - 1)), number(0)) : nullptr;
  for (size_t i = 0; i < partial.size(); ++i) {
    when(both(leads, lives[i]),
         [&] { write_shared(dtype, grid.offset, partial[i].first, partial[i].second); });
  }
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  return sum_parts(op, grid, parts, 1, parts, layouts_[op.results[0]]);
}

// Along the columns of a dealt tile where each wave holds whole rows: a thread's registers of the
// same column, then the lanes of a warp that hold it.
std::optional<GpuEmitter::Tile> GpuEmitter::reduce_waves(const Operation& op) {
  const Type& from = type(op.operands[0]);
  const Layout& layout = layouts_[op.operands[0]];
  const Tile& in = tile(op.operands[0]);
  DType dtype = from.dtype;
  int columns = from.shape[1], run = layout.run, wave = threads_ * run;
  if (layout.kind != Layout::Kind::kDealt || layout.elements() < threads_ || columns % run != 0 ||
      wave % columns != 0) {
    return std::nullopt;
  }
  int threads_per_row = columns / run;
  bool in_warp =
      std::has_single_bit(static_cast<unsigned>(threads_per_row)) && threads_per_row < kWarp;
  int parts = in_warp ? threads_ / kWarp : threads_ / threads_per_row;
  Tile sums(static_cast<size_t>(run), nullptr);
  for (int r = 0; r < layout.registers(); ++r) {
    Value* value = in[static_cast<size_t>(r)];
    if (Value* live = place(layout, r, from).live) {
      value = ir_.CreateSelect(live, value, identity(op.fn, dtype));
    }
    Value*& sum = sums[static_cast<size_t>(r % run)];
    sum = fold(op.fn, dtype, sum, value);
  }
  for (Value*& sum : sums) {
    for (int distance = threads_per_row; in_warp && distance < kWarp; distance *= 2) {
      sum = binary(op.fn, dtype, sum, shuffle_xor(sum, distance));
    }
  }
  Grid grid = make_grid(dtype, parts, columns);
  Value* part = in_warp ? warp_ : ir_.CreateUDiv(thread_, number(threads_per_row));
  Value* leads = in_warp ? ir_.CreateICmpULT(lane_, number(threads_per_row)) : nullptr;
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  when(leads, [&] {
    for (int r = 0; r < run; ++r) {
      Value* column = place(layout, r, from).column;
      write_shared(dtype, grid.offset, plus(times(part, columns), column),
                   sums[static_cast<size_t>(r)]);
    }
  });
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  return sum_parts(op, grid, parts, columns, 1, layouts_[op.results[0]]);
}

GpuEmitter::Tile GpuEmitter::reduce_in_shared(const Operation& op) {
  const Type& from = type(op.operands[0]);
  int rows = from.shape[0], columns = from.shape[1];
  Grid grid = make_grid(from.dtype, rows, columns);
  barrier_before(grid.offset, grid.bytes, /*write=*/true);
  write_grid(grid, tile(op.operands[0]), layouts_[op.operands[0]], from);
  barrier_before(grid.offset, grid.bytes, /*write=*/false);
  bool along_row = op.axis == 1;
  return sum_parts(op, grid, along_row ? columns : rows, along_row ? 1 : columns,
                   along_row ? columns : 1, layouts_[op.results[0]]);
}

}  // namespace tenon::codegen
