// Table look-up: in registers where the instruction set permutes by a variable, else in memory.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsAArch64.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

int lanes_of(llvm::Value* vector) {
  return static_cast<int>(llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements());
}

// The bits of sixteen floats, where they are constant.
std::optional<std::array<uint32_t, 16>> constant_bits(llvm::Value* table) {
  auto* known = llvm::dyn_cast<llvm::ConstantDataVector>(table);
  if (!known || !known->getElementType()->isFloatTy()) return std::nullopt;
  std::array<uint32_t, 16> bits;
  for (unsigned i = 0; i < 16; ++i) {
    bits[i] = static_cast<uint32_t>(known->getElementAsAPFloat(i).bitcastToAPInt().getZExtValue());
  }
  return bits;
}

// The first of sixteen whole numbers in a row, such as codes of integers stand for.
std::optional<int32_t> first_of_a_row(const std::array<uint32_t, 16>& bits) {
  const auto first = std::bit_cast<float>(bits[0]);
  if (!(std::abs(first) < 1024) || first != std::trunc(first)) return std::nullopt;
  for (size_t i = 0; i < 16; ++i) {
    if (std::bit_cast<uint32_t>(first + static_cast<float>(i)) != bits[i]) return std::nullopt;
  }
  return static_cast<int32_t>(first);
}

}  // namespace

void HostEmitter::lookup(const Operation& op) {
  DType dtype = type(op.results[0]).dtype, code = type(op.operands[1]).dtype;
  Value* table = single(op.operands[0]);
  bool bytes = bit_width(dtype) == 8;
  Tile out;
  for (Value* codes : tile(op.operands[1])) {
    bool scalar = !codes->getType()->isVectorTy();
    if (scalar) codes = ir_.CreateVectorSplat(1, codes);
    Value* narrow = cast(code, bytes ? DType::kU8 : DType::kU32, codes);
    Value* found = lookup_piece(dtype, table, narrow);
    out.push_back(scalar ? lane(found, 0) : found);
  }
  values_[op.results[0]] = std::move(out);
}

llvm::Value* HostEmitter::lookup_piece(DType dtype, Value* table, Value* codes) {
  bool small = lanes_of(table) == 16;
  if (small && bit_width(dtype) == 32) return permute_words(table, codes);
  if (small && bit_width(dtype) == 8) {
    return from_memory(dtype, permute_bytes(to_memory(dtype, table), codes));
  }
  return lookup_in_memory(dtype, table, codes);
}

// Sixteen 32-bit entries, codes as u32.
llvm::Value* HostEmitter::permute_words(Value* table, Value* codes) {
  llvm::Type* element = llvm::cast<llvm::VectorType>(table->getType())->getElementType();
  Value* floats = ir_.CreateBitCast(table, vector_of(ir_.getFloatTy(), 16));
  auto finish = [&](Value* found) {
    return ir_.CreateBitCast(found, found->getType()->getWithNewType(element));
  };
  if (target_.has("avx512f")) {
    return finish(in_chunks(codes, 16, [&](Value* c) {
      return ir_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, {}, {floats, c});
    }));
  }
  if (target_.arch == HostArch::kX86_64) {
    Value *low = subvector(floats, 0, 8), *high = subvector(floats, 8, 8);
    return finish(in_chunks(codes, 8, [&](Value* c) {
      auto permute = [&](Value* half) {
        return ir_.CreateIntrinsic(llvm::Intrinsic::x86_avx2_permps, {}, {half, c});
      };
      // Bit 3 of the code becomes the sign, which is what vblendvps looks at.
      Value* sign = ir_.CreateShl(c, 28);
      Value* is_high = ir_.CreateICmpSLT(sign, llvm::Constant::getNullValue(c->getType()));
      return ir_.CreateSelect(is_high, permute(high), permute(low));
    }));
  }
  return finish(permute_words_neon(floats, codes));
}

// tbl of four registers is several micro-ops, and its index takes a multiplication: it is the last
// resort.
llvm::Value* HostEmitter::permute_words_neon(Value* floats, Value* codes) {
  auto number = [](Value* like, uint32_t v) { return llvm::ConstantInt::get(like->getType(), v); };
  auto entry_of = [&](Value* c) { return ir_.CreateAnd(c, number(c, 15)); };
  const auto bits = constant_bits(floats);
  if (const auto first = bits ? first_of_a_row(*bits) : std::nullopt) {
    return in_chunks(codes, 4, [&](Value* c) {
      Value* whole = ir_.CreateAdd(entry_of(c), number(c, static_cast<uint32_t>(*first)));
      return ir_.CreateSIToFP(whole, vector_of(ir_.getFloatTy(), 4));
    });
  }
  auto in_bytes = [&](Value* v) { return ir_.CreateBitCast(v, vector_of(ir_.getInt8Ty(), 16)); };
  auto in_floats = [&](Value* v) { return ir_.CreateBitCast(v, vector_of(ir_.getFloatTy(), 4)); };
  if (bits && std::ranges::all_of(*bits, [](uint32_t b) { return b % 0x10000 == 0; })) {
    // Two bytes say all: one register has the lower ones, one the upper; others than 0 … 31 give 0.
    std::array<uint8_t, 16> lower, upper;
    for (size_t i = 0; i < 16; ++i) {
      lower[i] = static_cast<uint8_t>((*bits)[i] >> 16);
      upper[i] = static_cast<uint8_t>((*bits)[i] >> 24);
    }
    Value* low = llvm::ConstantDataVector::get(ir_.getContext(), lower);
    Value* high = llvm::ConstantDataVector::get(ir_.getContext(), upper);
    return in_chunks(codes, 4, [&](Value* c) {
      Value* entry = entry_of(c);
      Value* twice = ir_.CreateOr(ir_.CreateShl(entry, 16), ir_.CreateShl(entry, 24));
      Value* order = in_bytes(ir_.CreateOr(twice, number(c, 0x1000ffff)));
      return in_floats(ir_.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_tbl2, {order->getType()},
                                           {low, high, order}));
    });
  }
  std::vector<Value*> bytes;
  for (int quarter = 0; quarter < 4; ++quarter) {
    bytes.push_back(in_bytes(subvector(floats, 4 * quarter, 4)));
  }
  return in_chunks(codes, 4, [&](Value* c) {
    Value* first = ir_.CreateMul(entry_of(c), number(c, 0x04040404));
    Value* order = in_bytes(ir_.CreateAdd(first, number(c, 0x03020100)));
    return in_floats(ir_.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_tbl4, {order->getType()},
                                         {bytes[0], bytes[1], bytes[2], bytes[3], order}));
  });
}

// Sixteen 8-bit entries, codes as u8.
llvm::Value* HostEmitter::permute_bytes(Value* table, Value* codes) {
  // The instructions give 0 for codes with a high bit set: only the low four bits may reach them.
  codes = ir_.CreateAnd(codes, llvm::ConstantInt::get(codes->getType(), 15));
  if (target_.arch == HostArch::kAArch64) {
    return in_chunks(codes, 16, [&](Value* c) {
      return ir_.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_tbl1, {c->getType()}, {table, c});
    });
  }
  int lanes = lanes_of(codes);
  int width = lanes > 32 && target_.has("avx512bw") ? 64 : lanes > 16 ? 32 : 16;
  auto id = width == 64   ? llvm::Intrinsic::x86_avx512_pshuf_b_512
            : width == 32 ? llvm::Intrinsic::x86_avx2_pshuf_b
                          : llvm::Intrinsic::x86_ssse3_pshuf_b_128;
  Value* repeated = join(std::vector<Value*>(static_cast<size_t>(width / 16), table));
  return in_chunks(codes, width, [&](Value* c) {
    return ir_.CreateIntrinsic(id, {}, {repeated, c});
  });
}

llvm::Value* HostEmitter::lookup_in_memory(DType dtype, Value* table, Value* codes) {
  Value* place = nullptr;
  if (auto* known = llvm::dyn_cast<llvm::Constant>(table); known && dtype != DType::kBool) {
    place = new llvm::GlobalVariable(module_, table->getType(), /*isConstant=*/true,
                                     llvm::GlobalValue::PrivateLinkage, known, "table");
  } else {
    llvm::IRBuilderBase::InsertPointGuard guard(ir_);
    ir_.SetInsertPoint(&function_->getEntryBlock(), function_->getEntryBlock().begin());
    place = ir_.CreateAlloca(
        to_memory(dtype, llvm::Constant::getNullValue(table->getType()))->getType());
  }
  if (!llvm::isa<llvm::Constant>(place)) ir_.CreateStore(to_memory(dtype, table), place);
  uint64_t last = static_cast<uint64_t>(lanes_of(table)) - 1;
  Value* entries = ir_.CreateAnd(codes, llvm::ConstantInt::get(codes->getType(), last));
  entries = ir_.CreateZExt(entries, codes->getType()->getWithNewType(ir_.getInt64Ty()));
  llvm::Type* element = memory_type(dtype);
  Value* pointers = ir_.CreateGEP(element, place, entries);
  llvm::Align alignment(element->getScalarSizeInBits() / 8);
  Value* found =
      ir_.CreateMaskedGather(codes->getType()->getWithNewType(element), pointers, alignment);
  return from_memory(dtype, found);
}

}  // namespace tenon::codegen
