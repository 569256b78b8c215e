// Products of small matrices.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsAArch64.h>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/host_instructions.h"
#include "codegen/llvm/emit_host.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

bool has_effects(const Operation& op) { return info(op.op).writes != 0 || info(op.op).regions > 0; }

bool is_whole(const Operation& load, size_t rank) {
  for (size_t d = 0; d < rank; ++d) {
    if (load.operands[2 + rank + d] != kNone) return false;
  }
  return true;
}

}  // namespace

// A load that feeds one dot and nothing else is left to the dot: `a` becomes scalar loads that LLVM
// turns into broadcasts from memory, rows of `b` are loaded where they are used. Not across stores.
void HostEmitter::before_region(const Region& region) {
  std::unordered_map<ValueId, const Operation*> loads;
  for (const Operation& op : region.operations) {
    if (has_effects(op)) loads.clear();
    if (op.op == Op::kLoad && uses_[op.results[0]] == 1 && type(op.results[0]).shape.size() == 2 &&
        is_whole(op, 2)) {
      loads[op.results[0]] = &op;
    }
    if ((op.op != Op::kDot && op.op != Op::kDotI8) ||
        multiplies_byte_matrices(kernel_, op, target_))
      continue;
    for (ValueId id : {op.operands[1], op.operands[2]}) {
      auto found = loads.find(id);
      if (found == loads.end()) continue;
      bool is_a = id == op.operands[1];
      // Bytes are taken four at a time, and rows as vectors: their last stride must be 1.
      bool needs_unit_stride = !is_a || op.op == Op::kDotI8;
      auto stride = index_values_.find(found->second->operands[3]);
      bool unit_stride = stride != index_values_.end() && stride->second == 1;
      if (needs_unit_stride && !unit_stride) continue;
      if (op.op == Op::kDotI8 && !is_a) continue;
      folded_loads_.insert(*found);
    }
  }
}

// a[m, k] as a scalar in its own type.
llvm::Value* HostEmitter::dot_a_element(ValueId a, const std::vector<Value*>& rows, int m, int k) {
  if (!rows.empty()) return lane(rows[static_cast<size_t>(m)], k);
  Access from = access(*folded_loads_.at(a), 2, 2);
  Value* offset = ir_.CreateNSWMul(from.strides[1], index_constant(k));
  return load_scalar(from.dtype, element_pointer(from.dtype, row_pointer(from, m), offset));
}

// Rows of `a` whose lanes are the factors; empty where each is broadcast from memory. NEON
// multiplies by a lane of a register, so one load brings four factors where registers are left for
// them.
std::vector<llvm::Value*> HostEmitter::dot_a_rows(const Operation& op) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]);
  auto folded = folded_loads_.find(op.operands[1]);
  if (folded == folded_loads_.end()) return rows(tile(op.operands[1]), a);
  const int height = acc.shape[0], lanes = target_.lanes_f32();
  const int row = (acc.shape[1] + lanes - 1) / lanes;  // registers of a row of sums, or of b
  auto stride = index_values_.find(folded->second->operands[3]);
  if (target_.arch != HostArch::kAArch64 || a.dtype != DType::kF32 || a.shape[1] != lanes ||
      stride == index_values_.end() || stride->second != 1 ||
      height * row + height + row > target_.vector_registers) {
    return {};
  }
  Access from = access(*folded->second, 2, 2);
  std::vector<Value*> out;
  for (int m = 0; m < height; ++m) {
    out.push_back(
        load_piece(line_of(from, 1, row_pointer(from, m), nullptr, nullptr), lanes, nullptr));
  }
  return out;
}

// As interpret/elements.h rounds it; NaN and infinity stay.
llvm::Value* HostEmitter::round_to_tf32(Value* x) {
  constexpr uint32_t kBelowHalf = 0xfff, kKept = 0xffffe000, kExponent = 0x7f800000;
  llvm::Type* words = x->getType()->getWithNewType(ir_.getInt32Ty());
  auto number = [&](uint32_t bits) { return llvm::ConstantInt::get(words, bits); };
  Value* bits = ir_.CreateBitCast(x, words);
  Value* odd = ir_.CreateAnd(ir_.CreateLShr(bits, number(13)), number(1));
  Value* above = ir_.CreateAdd(ir_.CreateAdd(bits, number(kBelowHalf)), odd);
  Value* rounded = ir_.CreateAnd(above, number(kKept));
  Value* is_finite = ir_.CreateICmpNE(ir_.CreateAnd(bits, number(kExponent)), number(kExponent));
  return ir_.CreateSelect(is_finite, ir_.CreateBitCast(rounded, x->getType()), x);
}

void HostEmitter::dot(const Operation& op) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]), &b = type(op.operands[2]);
  auto folded_b = folded_loads_.find(op.operands[2]);
  std::vector<Tile> out = row_pieces(tile(op.operands[0]), acc), b_rows;
  std::vector<Value*> a_rows = dot_a_rows(op);
  if (folded_b == folded_loads_.end()) b_rows = row_pieces(tile(op.operands[2]), b);
  auto factor = [&](const Type& from, Value* x) {
    return op.tf32 ? round_to_tf32(x) : cast(from.dtype, acc.dtype, x);
  };
  for (int k = 0; k < a.shape[1]; ++k) {
    Tile row;
    if (folded_b == folded_loads_.end()) {
      row = b_rows[static_cast<size_t>(k)];
    } else {
      Access from = access(*folded_b->second, 2, 2);
      Line line = line_of(from, 1, row_pointer(from, k), nullptr, nullptr);
      row = load_line(line, b.shape[1], nullptr);
      if (has_packed_rows(b)) row = {join(row)};
    }
    for (Value*& piece : row) piece = factor(b, piece);
    for (int m = 0; m < acc.shape[0]; ++m) {
      Value* scalar = dot_a_element(op.operands[1], a_rows, m, k);
      multiply_add(acc.dtype, out[static_cast<size_t>(m)], factor(a, scalar), row);
    }
  }
  values_[op.results[0]] = from_row_pieces(std::move(out), acc);
}

// sums += factor * row
void HostEmitter::multiply_add(DType dtype, Tile& sums, Value* factor, const Tile& row) {
  for (size_t p = 0; p < sums.size(); ++p) {
    llvm::Type* type = sums[p]->getType();
    Value* repeated =
        ir_.CreateVectorSplat(llvm::cast<llvm::FixedVectorType>(type)->getNumElements(), factor);
    if (is_floating(dtype)) {
      sums[p] = ir_.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {repeated, row[p], sums[p]});
    } else {
      sums[p] = ir_.CreateAdd(sums[p], ir_.CreateMul(repeated, row[p]));
    }
  }
}

// Four bytes a[row, 4 * group …] as one i32.
llvm::Value* HostEmitter::group_of_row(ValueId a, const std::vector<Value*>& a_rows, int row,
                                       int group) {
  auto folded = folded_loads_.find(a);
  if (folded == folded_loads_.end()) {
    Value* bytes = a_rows[static_cast<size_t>(row)];
    return lane(ir_.CreateBitCast(bytes, vector_of(ir_.getInt32Ty(), type(a).shape[1] / 4)), group);
  }
  Access from = access(*folded->second, 2, 2);
  Value* pointer = element_pointer(from.dtype, row_pointer(from, row), index_constant(4 * group));
  return ir_.CreateAlignedLoad(ir_.getInt32Ty(), pointer, llvm::Align(1));
}

// For each group, every lane's four bytes as an i32, in the pieces of a row of n lanes.
std::vector<HostEmitter::Tile> HostEmitter::groups_of_lanes(ValueId b) {
  const Type& t = type(b);
  int lanes = t.shape[0], groups = t.shape[1] / 4;
  if (groups == 1 && !has_packed_rows(Type::tile(DType::kI32, {1, lanes}))) {
    Tile words;  // [n,4] is packed, in pieces four times as wide as those of n lanes
    for (Value* piece : tile(b)) {
      auto* bytes = llvm::cast<llvm::FixedVectorType>(piece->getType());
      int count = static_cast<int>(bytes->getNumElements()) / 4;
      words.push_back(ir_.CreateBitCast(piece, vector_of(ir_.getInt32Ty(), count)));
    }
    return {words};
  }
  Value* words = ir_.CreateBitCast(flat(tile(b), t), vector_of(ir_.getInt32Ty(), lanes * groups));
  std::vector<Tile> out;
  for (int group = 0; group < groups; ++group) {
    std::vector<int> order;
    for (int i = 0; i < lanes; ++i) order.push_back(i * groups + group);
    Value* line = ir_.CreateShuffleVector(words, order);
    out.push_back(lanes <= kPackedRow ? Tile{line} : from_lines({line}));
  }
  return out;
}

void HostEmitter::dot_i8_matrices(const Operation& op) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]), &b = type(op.operands[2]);
  llvm::Type *words = vector_of(ir_.getInt32Ty(), 4), *bytes = vector_of(ir_.getInt8Ty(), 16);
  auto id = a.dtype == DType::kI8 ? llvm::Intrinsic::aarch64_neon_smmla
                                  : llvm::Intrinsic::aarch64_neon_usmmla;
  std::vector<Value*> a_rows = rows(tile(op.operands[1]), a);
  std::vector<Value*> b_rows = rows(tile(op.operands[2]), b);
  Value* sums = flat(tile(op.operands[0]), acc);
  for (int k = 0; k < a.shape[1]; k += 8) {
    auto eights = [&](const std::vector<Value*>& two) {
      return join({subvector(two[0], k, 8), subvector(two[1], k, 8)});
    };
    sums = ir_.CreateIntrinsic(id, {words, bytes}, {sums, eights(a_rows), eights(b_rows)});
  }
  values_[op.results[0]] = from_flat(sums, acc);
}

void HostEmitter::dot_i8(const Operation& op) {
  if (multiplies_byte_matrices(kernel_, op, target_)) return dot_i8_matrices(op);
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]);
  const bool a_signed = a.dtype == DType::kI8, b_signed = type(op.operands[2]).dtype == DType::kI8;
  std::vector<Value*> a_rows;
  if (!folded_loads_.contains(op.operands[1])) a_rows = rows(tile(op.operands[1]), a);
  std::vector<Tile> out = row_pieces(tile(op.operands[0]), acc);
  std::vector<Tile> groups = groups_of_lanes(op.operands[2]);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (int row = 0; row < acc.shape[0]; ++row) {
      Value* four = group_of_row(op.operands[1], a_rows, row, static_cast<int>(group));
      Tile& sums = out[static_cast<size_t>(row)];
      for (size_t p = 0; p < sums.size(); ++p) {
        auto* piece = llvm::cast<llvm::FixedVectorType>(sums[p]->getType());
        Value* repeated = ir_.CreateVectorSplat(piece->getNumElements(), four);
        Value* bytes = groups[group][p];
        // Instructions take the unsigned side first.
        sums[p] = b_signed ? four_bytes(sums[p], repeated, a_signed, bytes)
                           : four_bytes(sums[p], bytes, false, repeated);
      }
    }
  }
  values_[op.results[0]] = from_row_pieces(std::move(out), acc);
}

// acc[n] + the four products of the bytes in a[n] and b[n], in chunks as wide as the instruction.
llvm::Value* HostEmitter::four_bytes(Value* acc, Value* a, bool a_signed, Value* b) {
  int n = static_cast<int>(llvm::cast<llvm::FixedVectorType>(acc->getType())->getNumElements());
  bool x86 = target_.arch == HostArch::kX86_64;
  bool wide = target_.has("avx512vnni") || target_.has("avx512bw");
  int lanes = !x86 ? 4 : wide && n > 8 ? 16 : 8;
  if (!x86 && !target_.has("dotprod")) return four_bytes_anywhere(acc, a, a_signed, b);
  std::vector<Value*> parts;
  for (int first = 0; first < n; first += lanes) {
    auto chunk = [&](Value* v) {
      std::vector<int> order(static_cast<size_t>(lanes), -1);
      for (int i = 0; i < lanes && first + i < n; ++i) order[static_cast<size_t>(i)] = first + i;
      return n == lanes ? v : ir_.CreateShuffleVector(v, order);
    };
    parts.push_back(x86 ? four_bytes_x86(chunk(acc), chunk(a), a_signed, chunk(b))
                        : four_bytes_neon(chunk(acc), chunk(a), a_signed, chunk(b)));
  }
  return subvector(join(std::move(parts)), 0, n);
}

llvm::Value* HostEmitter::four_bytes_x86(Value* acc, Value* a, bool a_signed, Value* b) {
  llvm::Type* words = acc->getType();
  bool wide = llvm::cast<llvm::FixedVectorType>(words)->getNumElements() == 16;
  auto number = [](llvm::Type* type, uint32_t v) { return llvm::ConstantInt::get(type, v); };
  if (target_.has("avx512vnni") || (!wide && target_.has("avxvnni"))) {
    auto id =
        wide ? llvm::Intrinsic::x86_avx512_vpdpbusd_512 : llvm::Intrinsic::x86_avx512_vpdpbusd_256;
    auto multiply = [&](Value* sum, Value* unsigned_bytes) {
      return ir_.CreateIntrinsic(id, {}, {sum, unsigned_bytes, b});
    };
    if (!a_signed) return multiply(acc, a);
    // The instruction wants unsigned bytes: a + 128, and 128 * sum(b) taken off again.
    Value* offset = number(words, 0x80808080u);
    Value* excess = multiply(llvm::Constant::getNullValue(words), offset);
    return multiply(ir_.CreateSub(acc, excess), ir_.CreateXor(a, offset));
  }
  // Even and odd bytes as 16-bit numbers; vpmaddwd adds the two products of a dword exactly.
  int halves = wide ? 32 : 16;
  llvm::Type* shorts = vector_of(ir_.getInt16Ty(), halves);
  auto even = [&](Value* v, bool with_sign) {
    if (!with_sign) return ir_.CreateAnd(v, number(shorts, 0xff));
    return ir_.CreateAShr(ir_.CreateShl(v, number(shorts, 8)), number(shorts, 8));
  };
  auto odd = [&](Value* v, bool with_sign) {
    return with_sign ? ir_.CreateAShr(v, number(shorts, 8)) : ir_.CreateLShr(v, number(shorts, 8));
  };
  auto id = wide ? llvm::Intrinsic::x86_avx512_pmaddw_d_512 : llvm::Intrinsic::x86_avx2_pmadd_wd;
  Value *x = ir_.CreateBitCast(a, shorts), *y = ir_.CreateBitCast(b, shorts);
  Value* low = ir_.CreateIntrinsic(id, {}, {even(x, a_signed), even(y, true)});
  Value* high = ir_.CreateIntrinsic(id, {}, {odd(x, a_signed), odd(y, true)});
  return ir_.CreateAdd(acc, ir_.CreateAdd(low, high));
}

llvm::Value* HostEmitter::four_bytes_neon(Value* acc, Value* a, bool a_signed, Value* b) {
  llvm::Type* words = acc->getType();
  llvm::Type* bytes = vector_of(ir_.getInt8Ty(), 16);
  Value *x = ir_.CreateBitCast(a, bytes), *y = ir_.CreateBitCast(b, bytes);
  auto multiply = [&](llvm::Intrinsic::ID id, Value* sum, Value* left) {
    return ir_.CreateIntrinsic(id, {words, bytes}, {sum, left, y});
  };
  // What is repeated comes last: the instruction takes it from a lane.
  if (a_signed) {
    return ir_.CreateIntrinsic(llvm::Intrinsic::aarch64_neon_sdot, {words, bytes}, {acc, y, x});
  }
  if (target_.has("i8mm")) return multiply(llvm::Intrinsic::aarch64_neon_usdot, acc, x);
  // sdot wants signed bytes: a - 128, and 128 * sum(b) added back.
  Value* shifted = ir_.CreateXor(x, llvm::ConstantInt::get(bytes, 0x80));
  Value* sums = multiply(llvm::Intrinsic::aarch64_neon_sdot, llvm::Constant::getNullValue(words),
                         llvm::ConstantInt::get(bytes, 1));
  Value* missing = ir_.CreateShl(sums, 7);
  return multiply(llvm::Intrinsic::aarch64_neon_sdot, ir_.CreateAdd(acc, missing), shifted);
}

llvm::Value* HostEmitter::four_bytes_anywhere(Value* acc, Value* a, bool a_signed, Value* b) {
  auto byte = [&](Value* v, unsigned position, bool with_sign) {
    Value* top = ir_.CreateShl(v, 24 - 8 * position);
    return with_sign ? ir_.CreateAShr(top, 24) : ir_.CreateLShr(top, 24);
  };
  for (unsigned i = 0; i < 4; ++i) {
    acc = ir_.CreateAdd(acc, ir_.CreateMul(byte(a, i, a_signed), byte(b, i, true)));
  }
  return acc;
}

}  // namespace tenon::codegen
