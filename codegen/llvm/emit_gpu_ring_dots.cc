// Products whose right operand is a slot of a ring: wgmma where the architecture has it, which runs
// beside everything else, or mma.sync. Sums lie the same in both.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"

namespace tenon::codegen {

namespace {

using ptx::Instruction;

constexpr int kStep = 16, kBlockRows = 64, kRowBytes = 128;
constexpr int kStepBytes = kStep * 2;

// Of a matrix in rows of 128 bytes, swizzled: eight rows are 1024 bytes, and so on.
constexpr uint64_t kDescriptor = uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;

}  // namespace

// Results that nobody looks at before the pipeline has ended may be computed beside the next step.
void GpuEmitter::plan_in_flight(const Operation& pipeline) {
  const Region& region = pipeline.regions[1];
  auto is_product_here = [&](const Operation* op) {
    bool here =
        op >= region.operations.data() && op < region.operations.data() + region.operations.size();
    return here && multiplies_async(*op);
  };
  auto only_summed = [&](ValueId id) {
    return std::ranges::all_of(users_[id], [&](const auto& user) {
      return is_product_here(user.first) && user.second == 0;
    });
  };
  auto may_run_on = [&](ValueId id) {
    return std::ranges::all_of(users_[id], [&](const auto& user) {
      if (user.first == &region.operations.back()) {
        return only_summed(region.arguments[2 + user.second]);
      }
      return is_product_here(user.first) && user.second == 0;
    });
  };
  for (const Operation& op : region.operations) {
    if (is_product_here(&op) && may_run_on(op.results[0])) in_flight_.insert(&op);
  }
}

struct GpuEmitter::RingProduct {
  const Operation& op;
  RingDot operands;
  int columns, blocks, steps;

  RingProduct(const Kernel& kernel, const Operation& dot, RingDot from, int threads)
      : op(dot),
        operands(from),
        columns(kernel.types[dot.results[0]].shape[1]),
        blocks(kernel.types[dot.results[0]].shape[0] / kBlockRows / (threads / 128)),
        steps(kernel.types[dot.operands[1]].shape[1] / kStep) {}

  size_t sums() const { return static_cast<size_t>(columns / 2); }  // of a block, in a thread
};

namespace {

// Short products need more of them to fill the time until the first has ended; long ones need the
// registers.
int groups_in_flight(int columns) { return columns >= 128 ? 1 : columns >= 64 ? 2 : 3; }

}  // namespace

void GpuEmitter::multiply_ring(const Operation& op, const RingDot& operands) {
  RingProduct product(kernel_, op, operands, threads_);
  for (const Operation* read : {operands.left, operands.right}) {
    if (!read || rings_[read->operands[0]].row_bytes > 0) continue;
    throw UserError(
        fmt::format("kernel @{}: products read slots that are fetched as boxes, not as "
                    "runs",
                    kernel_.name));
  }
  if (specialised_ && multiplies_async(op)) return multiply_async(product);
  multiply_in_order(product);
}

bool GpuEmitter::multiplies_async(const Operation& op) const {
  return op.op == Op::kDot && op.integer == 0 && type(op.results[0]).shape[1] > kFewColumns &&
         ring_dot(kernel_, definitions_, op, threads_);
}

// The four words of a block of rows for one step.
GpuEmitter::Tile GpuEmitter::left_words(const RingProduct& product, int block, int step) {
  Tile out;
  int first = 8 * (block * product.steps + step);
  for (int r = first; r < first + 8; r += 2) out.push_back(word(product.op.operands[1], r));
  return out;
}

llvm::Value* GpuEmitter::descriptor(const Operation& read) {
  Value* pointer = slot_pointer(rings_[read.operands[0]], single(read.operands[1]));
  Value* address = ir_.CreatePtrToInt(pointer, ir_.getInt32Ty());
  Value* units = ir_.CreateLShr(ir_.CreateAnd(address, number(0x3ffff)), 4);
  return ir_.CreateOr(ir_.CreateZExt(units, ir_.getInt64Ty()), ir_.getInt64(kDescriptor));
}

void GpuEmitter::multiply_async(const RingProduct& product) {
  const Operation& op = product.op;
  DType dtype = type(op.operands[1]).dtype;
  Tile sums = in_layout(op.operands[0], layouts_[op.results[0]]);
  auto moved = [&](Value* from, int64_t bytes) {
    return ir_.CreateAdd(from, ir_.getInt64(static_cast<uint64_t>(bytes >> 4)));
  };
  Value* right = descriptor(*product.operands.right);
  Value* left = nullptr;
  if (product.operands.left) {
    Value* block = times(ir_.CreateLShr(thread_, 7), product.blocks);
    Value* bytes = times(block, kBlockRows * kRowBytes >> 4);
    left =
        ir_.CreateAdd(descriptor(*product.operands.left), ir_.CreateZExt(bytes, ir_.getInt64Ty()));
  }
  auto operands_of = [&](int step) {
    std::vector<Tile> out;
    for (int block = 0; block < product.blocks; ++block) {
      if (left) {
        out.push_back({moved(left, block * kBlockRows * kRowBytes + step * kStepBytes)});
        continue;
      }
      Tile words = left_words(product, block, step);
      for (Value*& word : words) word = instruct(Instruction::kPin, {word});
      out.push_back(words);
    }
    return out;
  };
  int depth = groups_in_flight(product.columns);
  std::vector<Tile> current = operands_of(0);
  for (int step = 0; step < product.steps; ++step) {
    instruct(Instruction::kProductFence, {});
    for (int block = 0; block < product.blocks; ++block) {
      auto first = sums.begin() + static_cast<int64_t>(product.sums()) * block;
      Tile part(first, first + static_cast<int64_t>(product.sums()));
      part = ptx::multiply_async(ir_, dtype, part, current[static_cast<size_t>(block)],
                                 moved(right, step * kStepBytes));
      std::ranges::copy(part, first);
    }
    instruct(Instruction::kProductCommit, {});
    if (step + 1 < product.steps) current = operands_of(step + 1);
    instruct(Instruction::kProductWait, {number(depth)});
    // So many are left that none of the step before is among them.
    if (++steps_begun_ >= depth && give_back_) std::exchange(give_back_, nullptr)();
  }
  if (!in_flight_.contains(&op)) sums = ptx::finish_products(ir_, sums);
  values_[op.results[0]] = std::move(sums);
}

// ---- mma.sync

llvm::Value* GpuEmitter::ring_place(const Operation& read, Value* row, Value* column) {
  const Ring& ring = rings_[read.operands[0]];
  Value* byte = swizzled(ring, plus(times(row, kRowBytes), times(column, 2)));
  return ir_.CreateInBoundsGEP(ir_.getInt8Ty(), slot_pointer(ring, single(read.operands[1])),
                               as_index(byte));
}

GpuEmitter::Tile GpuEmitter::load_ring_matrices(const Operation& read, Value* row, Value* column,
                                                int count) {
  using namespace llvm::Intrinsic;
  Value* pointer = ring_place(read, row, column);
  auto id =
      count == 4 ? nvvm_ldmatrix_sync_aligned_m8n8_x4_b16 : nvvm_ldmatrix_sync_aligned_m8n8_x2_b16;
  Value* loaded = ir_.CreateIntrinsic(id, {pointer->getType()}, {pointer});
  Tile out;
  for (int i = 0; i < count; ++i) {
    out.push_back(ir_.CreateExtractValue(loaded, static_cast<unsigned>(i)));
  }
  return out;
}

void GpuEmitter::multiply_in_order(const RingProduct& product) {
  const Operation& op = product.op;
  DType dtype = type(op.operands[1]).dtype;
  Tile sums = in_layout(op.operands[0], layouts_[op.results[0]]);
  auto bit = [&](int shift) { return ir_.CreateAnd(ir_.CreateLShr(lane_, shift), number(1)); };
  // Of groups each warp has its own columns; where they are fewer than the sums', they repeat.
  int columns = product.columns;
  Value* first_column = number(0);
  if (op.integer > 0) {
    auto groups = static_cast<int>(op.integer);
    columns = type(op.operands[2]).shape[1] / groups;
    first_column = times(ir_.CreateUDiv(warp_, number(threads_ / kWarp / groups)), columns);
  }
  auto right_row = [&](Value* column) {
    return plus(first_column,
                columns < product.columns ? ir_.CreateAnd(column, number(columns - 1)) : column);
  };
  Tile both;  // eight columns: the words of two steps come at once
  for (int step = 0; step < product.steps; ++step) {
    std::vector<Tile> left;
    for (int block = 0; block < product.blocks; ++block) {
      if (!product.operands.left) {
        left.push_back(left_words(product, block, step));
        continue;
      }
      Value* group = times(ir_.CreateLShr(warp_, 2), product.blocks * kBlockRows);
      Value* first = plus(group, times(ir_.CreateAnd(warp_, 3), 16));
      Value* row = plus(plus(first, block * kBlockRows), ir_.CreateAnd(lane_, 15));
      Value* k = plus(times(ir_.CreateLShr(lane_, 4), 8), step * kStep);
      left.push_back(load_ring_matrices(*product.operands.left, row, k, 4));
    }
    for (int column = 0; column < product.columns; column += 16) {
      int count = std::min(2, (product.columns - column) / 8);
      Value* second = count == 2 ? times(ir_.CreateLShr(lane_, 4), 8) : number(0);
      Value* row = right_row(plus(plus(ir_.CreateAnd(lane_, 7), second), column));
      Value* k = plus(times(bit(3), 8), step * kStep);
      Tile right;
      if (product.columns == 8 && product.steps % 2 == 0) {
        Value* wide = plus(times(ir_.CreateLShr(lane_, 3), 8), step * kStep);
        if (step % 2 == 0) both = load_ring_matrices(*product.operands.right, row, wide, 4);
        right.assign(both.begin() + step % 2 * 2, both.begin() + step % 2 * 2 + 2);
      } else {
        right = load_ring_matrices(*product.operands.right, row, k, 2 * count);
      }
      for (int block = 0; block < product.blocks; ++block) {
        for (int i = 0; i < count; ++i) {
          auto first = static_cast<size_t>(block) * product.sums() +
                       static_cast<size_t>((column / 8 + i) * 4);
          multiply_fragment(dtype, left[static_cast<size_t>(block)],
                            std::span(right).subspan(static_cast<size_t>(2 * i), 2),
                            std::span(sums).subspan(first, 4));
        }
      }
    }
  }
  values_[op.results[0]] = std::move(sums);
}

}  // namespace tenon::codegen
