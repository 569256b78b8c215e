// Products of blocks in memory: AMX where there is one, vectors elsewhere.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <array>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

constexpr int kTileRows = 16, kTileBytes = 64;  // of each tile register: 16 rows of 64 bytes
constexpr int kTileWords = 16;                  // sums, or pairs of bf16, in a row of a tile
constexpr int kTileK = 32;
constexpr int kSums = 0, kLeft = 4, kRight = 6;  // tile registers: four sums, two of each factor

}  // namespace

struct HostEmitter::TileOperands {
  Value *c, *a, *b;  // where they begin
  Value *distance, *k;
  int rows, columns;
};

void HostEmitter::tile_dot(const Operation& op) {
  const auto at = [&](size_t i) {
    return element_pointer(type(op.operands[i]).dtype, single(op.operands[i]),
                           single(op.operands[i + 1]));
  };
  const TileOperands operands{at(0),
                              at(2),
                              at(4),
                              single(op.operands[6]),
                              single(op.operands[7]),
                              static_cast<int>(op.integers[0]),
                              static_cast<int>(op.integers[1])};
  target_.has("amx-bf16") ? tile_dot_amx(operands) : tile_dot_rows(operands);
}

// Every tile register is whole, for all tasks of a call.
void HostEmitter::configure_tiles() {
  std::array<uint8_t, 64> config{};
  config[0] = 1;  // palette
  for (size_t tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = kTileBytes;
    config[48 + tile] = kTileRows;
  }
  Value* bytes = llvm::ConstantDataVector::get(ir_.getContext(), config);
  llvm::AllocaInst* slot = ir_.CreateAlloca(bytes->getType());
  slot->setAlignment(llvm::Align(64));
  ir_.CreateAlignedStore(bytes, slot, llvm::Align(64));
  ir_.CreateIntrinsic(llvm::Intrinsic::x86_ldtilecfg, {}, {slot});
}

void HostEmitter::release_tiles() { ir_.CreateIntrinsic(llvm::Intrinsic::x86_tilerelease, {}, {}); }

// Runs `body(i)` for i = 0 to `count` (at least 1) by `step`; what it carries goes on.
std::vector<llvm::Value*> HostEmitter::counted(Value* count, int step, std::vector<Value*> carried,
                                               const CountedBody& body) {
  llvm::BasicBlock* before = ir_.GetInsertBlock();
  auto* inside = llvm::BasicBlock::Create(ir_.getContext(), "tiles", function_);
  auto* exit = llvm::BasicBlock::Create(ir_.getContext(), "end_tiles", function_);
  ir_.CreateBr(inside);
  ir_.SetInsertPoint(inside);
  llvm::PHINode* counter = ir_.CreatePHI(ir_.getInt64Ty(), 2);
  counter->addIncoming(index_constant(0), before);
  std::vector<llvm::PHINode*> phis;
  for (Value*& value : carried) {
    phis.push_back(ir_.CreatePHI(value->getType(), 2));
    phis.back()->addIncoming(value, before);
    value = phis.back();
  }
  carried = body(counter, std::move(carried));
  Value* next = ir_.CreateNSWAdd(counter, index_constant(step));
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(carried[i], ir_.GetInsertBlock());
  counter->addIncoming(next, ir_.GetInsertBlock());
  ir_.CreateCondBr(ir_.CreateICmpSLT(next, count), inside, exit);
  ir_.SetInsertPoint(exit);
  return carried;
}

void HostEmitter::tile_dot_amx(const TileOperands& at) {
  const int down = at.rows / kTileRows, across = at.columns / kTileWords;
  const auto byte_at = [&](Value* base, Value* offset) {
    return ir_.CreateGEP(ir_.getInt8Ty(), base, offset);
  };
  const auto number = [&](int tile) { return ir_.getInt8(static_cast<uint8_t>(tile)); };
  const auto move = [&](llvm::Intrinsic::ID id, int tile, Value* from, int stride) {
    ir_.CreateIntrinsic(id, {}, {number(tile), from, index_constant(stride)});
  };
  const auto each_sum = [&](const std::function<void(int tile, int i, int j)>& visit) {
    for (int i = 0; i < down; ++i) {
      for (int j = 0; j < across; ++j) visit(kSums + 2 * i + j, i, j);
    }
  };
  const int c_row = 4 * at.columns;  // bytes; a row of b is as long
  const auto move_sums = [&](llvm::Intrinsic::ID id) {
    each_sum([&](int tile, int i, int j) {
      move(id, tile, byte_at(at.c, index_constant(kTileRows * i * c_row + kTileBytes * j)), c_row);
    });
  };
  move_sums(llvm::Intrinsic::x86_tileloadd64);
  counted(at.k, kTileK, {}, [&](Value* k, std::vector<Value*>) {
    // A tile of a is 1 KiB for 32 k; as many of b are 16 of its rows.
    Value* a = byte_at(at.a, ir_.CreateNSWMul(k, index_constant(kTileRows * kTileBytes / kTileK)));
    Value* b = byte_at(at.b, ir_.CreateNSWMul(k, index_constant(c_row / 2)));
    for (int i = 0; i < down; ++i) {
      Value* rows = ir_.CreateNSWMul(at.distance, index_constant(2 * i));
      move(llvm::Intrinsic::x86_tileloadd64, kLeft + i, byte_at(a, rows), kTileBytes);
    }
    for (int j = 0; j < across; ++j) {
      move(llvm::Intrinsic::x86_tileloadd64, kRight + j, byte_at(b, index_constant(kTileBytes * j)),
           c_row);
    }
    each_sum([&](int tile, int i, int j) {
      ir_.CreateIntrinsic(llvm::Intrinsic::x86_tdpbf16ps, {},
                          {number(tile), number(kLeft + i), number(kRight + j)});
    });
    return std::vector<Value*>{};
  });
  move_sums(llvm::Intrinsic::x86_tilestored64);
}

// The same row by row, so that every machine can check what is built on it.
void HostEmitter::tile_dot_rows(const TileOperands& at) {
  llvm::Type *words = vector_of(ir_.getInt32Ty(), at.columns), *pair = ir_.getInt32Ty();
  llvm::Type* sums = vector_of(ir_.getFloatTy(), at.columns);
  const auto half = [&](Value* both, bool high) {
    Value* bits = high ? ir_.CreateAnd(both, llvm::ConstantInt::get(both->getType(), 0xffff0000u))
                       : ir_.CreateShl(both, 16);
    return ir_.CreateBitCast(bits, both->getType()->getWithNewType(ir_.getFloatTy()));
  };
  counted(index_constant(at.rows), 1, {}, [&](Value* row, std::vector<Value*>) {
    Value* c = ir_.CreateGEP(sums, at.c, row);
    Value* tile = ir_.CreateUDiv(row, index_constant(kTileRows));
    Value* a = ir_.CreateGEP(ir_.getInt16Ty(), at.a, ir_.CreateNSWMul(tile, at.distance));
    Value* within = ir_.CreateURem(row, index_constant(kTileRows));
    a = ir_.CreateGEP(pair, a, ir_.CreateNSWMul(within, index_constant(kTileWords)));
    Value* first = ir_.CreateAlignedLoad(sums, c, llvm::Align(4));
    Value* pairs = ir_.CreateUDiv(at.k, index_constant(2));
    Value* sum = counted(pairs, 1, {first}, [&](Value* p, std::vector<Value*> carried) {
      Value* chunk = ir_.CreateUDiv(p, index_constant(kTileWords));
      Value* skipped = ir_.CreateNSWMul(chunk, index_constant(kTileWords * (kTileRows - 1)));
      Value* left = ir_.CreateAlignedLoad(
          pair, ir_.CreateGEP(pair, a, ir_.CreateNSWAdd(p, skipped)), llvm::Align(2));
      Value* right = ir_.CreateAlignedLoad(words, ir_.CreateGEP(words, at.b, p), llvm::Align(2));
      for (bool high : {false, true}) {
        Value* factor = ir_.CreateVectorSplat(static_cast<unsigned>(at.columns), half(left, high));
        carried[0] = ir_.CreateIntrinsic(llvm::Intrinsic::fma, {sums},
                                         {factor, half(right, high), carried[0]});
      }
      return carried;
    })[0];
    ir_.CreateAlignedStore(sum, c, llvm::Align(4));
    return std::vector<Value*>{};
  });
}

}  // namespace tenon::codegen
