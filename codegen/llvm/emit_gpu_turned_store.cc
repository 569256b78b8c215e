// Stores of turned sums. A product's sums lie along its columns; turned, neighbours in memory are
// in other threads, so they pass through shared memory: up to 64 rows of memory at a time, each
// with the 64 elements that a warpgroup has of it, and leave as vectors of 16 bytes. The warpgroups
// do not wait for each other.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>

#include <algorithm>

#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"

namespace tenon::codegen {

namespace {

using ptx::Instruction;

constexpr int kWarpgroup = 128, kBlockRows = 64, kUnit = 16;
constexpr int kFirstBarrier = 2;  // 0 is the CTA's, 1 that of all who compute

}  // namespace

// Here `tokens` are rows in memory and `rows` those of the product.
struct GpuEmitter::TurnedStore {
  int bytes, tokens, rows, blocks, piece_tokens;

  TurnedStore(const Type& type, int threads)
      : bytes(bit_width(type.dtype) / 8),
        tokens(type.shape[0]),
        rows(type.shape[1]),
        blocks(rows / kBlockRows / (threads / kWarpgroup)),
        piece_tokens(std::min(tokens, bytes == 2 ? 32 : 16)) {}

  // 16-bit rows are swizzled; others begin in another bank each.
  int pitch() const { return kBlockRows * bytes + (bytes == 2 ? 0 : kUnit); }
  int units() const { return kBlockRows * bytes / kUnit; }
  int64_t buffer_bytes() const { return int64_t{piece_tokens} * pitch(); }  // of a warpgroup
};

bool GpuEmitter::is_turned(ValueId id) const {
  const Type& type = kernel_.types[id];
  int bits = bit_width(type.dtype);
  if (!layouts_[id].is_bits() || type.shape.size() != 2 || (bits != 16 && bits != 32)) return false;
  return turned_sums(type.shape, threads_) == layouts_[id];
}

void GpuEmitter::plan_turned_stores() {
  int64_t bytes = 0;
  for (size_t id = 0; id < users_.size(); ++id) {
    for (auto [user, operand] : users_[id]) {
      if (user->op != Op::kStore || operand != 2 || !is_turned(static_cast<ValueId>(id))) continue;
      bytes = std::max(bytes, TurnedStore(type(user->operands[2]), threads_).buffer_bytes());
    }
  }
  if (bytes == 0) return;
  turned_bytes_ = bytes * (threads_ / kWarpgroup);
  for (int64_t& buffer : turned_buffers_) buffer = shared_.keep(turned_bytes_);
}

void GpuEmitter::warpgroup_barrier_before(int64_t offset, int64_t bytes, bool write) {
  if (!turned_.access(offset, bytes, write)) return;
  Value* id = plus(ir_.CreateLShr(thread_, 7), kFirstBarrier);
  ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier, {}, {id, number(kWarpgroup)});
  turned_.access(offset, bytes, write);
}

void GpuEmitter::store_turned(const Access& to, ValueId id) {
  TurnedStore store(type(id), threads_);
  const Tile& in = tile(id);
  int fragments = store.tokens / 8;
  Value* apply = groups_apply(to, kUnit / store.bytes);
  for (int block = 0; block < store.blocks; ++block) {
    for (int token = 0; token < store.tokens; token += store.piece_tokens) {
      int64_t offset = turned_buffers_[turned_next_];
      turned_next_ ^= 1;
      auto first = static_cast<size_t>(4 * (block * fragments + token / 8));
      std::span piece(in.data() + first, static_cast<size_t>(store.piece_tokens / 2));
      warpgroup_barrier_before(offset, turned_bytes_, /*write=*/true);
      write_piece(store, type(id).dtype, offset, piece);
      warpgroup_barrier_before(offset, turned_bytes_, /*write=*/false);
      store_piece(store, to, apply, offset, block, token);
    }
  }
}

llvm::Value* GpuEmitter::piece_place(const TurnedStore& store, int64_t offset, Value* token,
                                     Value* byte) {
  Value* group = times(ir_.CreateLShr(thread_, 7), store.buffer_bytes());
  if (store.bytes == 2) {
    byte = ir_.CreateXor(byte, times(ir_.CreateAnd(token, 7), kUnit));
  }
  Value* at = plus(group, plus(times(token, store.pitch()), byte));
  return ir_.CreateInBoundsGEP(ir_.getInt8Ty(), shared_pointer(offset), as_index(at));
}

void GpuEmitter::write_piece(const TurnedStore& store, DType dtype, int64_t offset,
                             std::span<Value* const> piece) {
  Value* warp = ir_.CreateAnd(warp_, 3);
  bool by_matrices = store.bytes == 2 && has_matrix_stores();
  if (!by_matrices) {
    Value* pair = times(ir_.CreateAnd(lane_, 3), 2);
    Value* row = plus(times(warp, 16), ir_.CreateLShr(lane_, 2));
    for (size_t r = 0; r < piece.size(); ++r) {
      auto fragment = static_cast<int64_t>(r / 4);
      Value* token = plus(pair, fragment * 8 + static_cast<int64_t>(r % 2));
      Value* byte = times(plus(row, static_cast<int64_t>(r / 2 % 2) * 8), store.bytes);
      store_vector(dtype, piece_place(store, offset, token, byte), {&piece[r], 1});
    }
    return;
  }
  Value* half = ir_.CreateAnd(ir_.CreateLShr(lane_, 3), 1);
  Value* byte = times(plus(times(warp, 2), half), kUnit);
  for (size_t r = 0; r < piece.size(); r += 8) {
    bool four = r + 8 <= piece.size();
    Value* second = four ? times(ir_.CreateLShr(lane_, 4), 8) : number(0);
    Value* token = plus(plus(ir_.CreateAnd(lane_, 7), second), static_cast<int64_t>(r) * 2);
    Value* pointer = piece_place(store, offset, token, byte);
    Value* address = ir_.CreatePtrToInt(pointer, ir_.getInt32Ty());
    auto packed = [&](size_t i) { return pack_halves(piece[r + 2 * i], piece[r + 2 * i + 1]); };
    if (four) {
      instruct(Instruction::kStoreMatrices, {address, packed(0), packed(1), packed(2), packed(3)});
    } else {
      instruct(Instruction::kStoreTwoMatrices, {address, packed(0), packed(1)});
    }
  }
}

// From shared memory to where it belongs: whole units where memory allows it, else elements.
void GpuEmitter::store_piece(const TurnedStore& store, const Access& to, Value* apply,
                             int64_t offset, int block, int first_token) {
  auto& context = module_.getContext();
  Value* thread = ir_.CreateAnd(thread_, kWarpgroup - 1);
  Value* first_row =
      plus(times(ir_.CreateLShr(thread_, 7), store.blocks * kBlockRows), block * kBlockRows);
  // `per_token` pieces of `bytes` in each row, some for each thread. No branches: with all sums in
  // registers around them they would cost the assembler most of its time.
  auto one = [&](Value* number_of, Value* live, int per_token, int bytes) {
    Value* token = ir_.CreateUDiv(number_of, number(per_token));
    Value* part = ir_.CreateAnd(number_of, number(per_token - 1));
    Place at{plus(token, first_token), plus(first_row, times(part, bytes / store.bytes)), live};
    Value* present = inside(to, at);
    if (!present) present = ir_.getTrue();
    if (live) part = ir_.CreateSelect(live, part, number(0));
    Value* from = piece_place(
        store, offset, live ? ir_.CreateSelect(live, token, number(0)) : token, times(part, bytes));
    Value* pointer = ir_.CreateGEP(memory_type(to.dtype), to.base, offset_of(to, at));
    llvm::Align alignment(static_cast<uint64_t>(bytes));
    if (bytes < kUnit) {
      llvm::Type* type = ir_.getIntNTy(static_cast<unsigned>(8 * bytes));
      Value* value = ir_.CreateAlignedLoad(type, from, alignment);
      instruct(bytes == 2 ? Instruction::kStoreHalf : Instruction::kStoreWord,
               {present, pointer, value});
      return;
    }
    auto* vector = llvm::FixedVectorType::get(ir_.getInt32Ty(), 4);
    Value* value = ir_.CreateAlignedLoad(vector, from, alignment);
    auto word = [&](uint64_t i) { return ir_.CreateExtractElement(value, i); };
    instruct(Instruction::kStoreUnit, {present, pointer, word(0), word(1), word(2), word(3)});
  };
  auto* units = llvm::BasicBlock::Create(context, "units", function_);
  auto* elements = llvm::BasicBlock::Create(context, "elements", function_);
  auto* after = llvm::BasicBlock::Create(context, "stored", function_);
  ir_.CreateCondBr(apply, units, elements);
  ir_.SetInsertPoint(units);
  int count = store.piece_tokens * store.units();
  for (int first = 0; first < count; first += kWarpgroup) {
    Value* unit = plus(thread, first);
    Value* live = first + kWarpgroup <= count ? nullptr : ir_.CreateICmpULT(unit, number(count));
    one(unit, live, store.units(), kUnit);
  }
  ir_.CreateBr(after);
  ir_.SetInsertPoint(elements);
  counted_loop(
      store.piece_tokens * kBlockRows / kWarpgroup, {},
      [&](Value* turn, const Tile&) {
        one(plus(thread, times(turn, kWarpgroup)), nullptr, kBlockRows, store.bytes);
        return Tile{};
      },
      /*rolled=*/true);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

}  // namespace tenon::codegen
