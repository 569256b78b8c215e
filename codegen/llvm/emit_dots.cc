// Products of small matrices.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsAArch64.h>
#include <llvm/IR/IntrinsicsX86.h>

#include "codegen/llvm/emit_host.h"

namespace tenon::codegen {

namespace {

bool has_effects(const Operation& op) {
  return op.op == Op::kStore || op.op == Op::kScatter || op.op == Op::kFor || op.op == Op::kIf;
}

bool is_whole(const Operation& load, size_t rank) {
  for (size_t d = 0; d < rank; ++d) {
    if (load.operands[2 + rank + d] != kNone) return false;
  }
  return true;
}

}  // namespace

// A load that feeds one dot and nothing else is left to the dot: `a` becomes scalar loads that LLVM
// turns into broadcasts from memory, rows of `b` are loaded where they are used. Not across stores.
void HostEmitter::plan_dot_operands(const Region& region) {
  std::unordered_map<ValueId, const Operation*> loads;
  for (const Operation& op : region.operations) {
    if (has_effects(op)) loads.clear();
    if (op.op == Op::kLoad && uses_[op.results[0]] == 1 &&
        type(op.results[0]).shape.size() == 2 && is_whole(op, 2)) {
      loads[op.results[0]] = &op;
    }
    if (op.op != Op::kDot && op.op != Op::kDotI8) continue;
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
  auto folded = folded_loads_.find(a);
  if (folded == folded_loads_.end()) return lane(rows[static_cast<size_t>(m)], k);
  Access from = access(*folded->second, 2, 2);
  Value* offset = ir_.CreateNSWMul(from.strides[1], index_constant(k));
  return load_scalar(from.dtype, element_pointer(from.dtype, row_pointer(from, m), offset));
}

void HostEmitter::dot(const Operation& op) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]), &b = type(op.operands[2]);
  std::vector<Value*> out = rows(tile(op.operands[0]), acc), a_rows, b_rows;
  auto folded_b = folded_loads_.find(op.operands[2]);
  if (!folded_loads_.contains(op.operands[1])) a_rows = rows(tile(op.operands[1]), a);
  if (folded_b == folded_loads_.end()) b_rows = rows(tile(op.operands[2]), b);
  auto n = static_cast<unsigned>(acc.shape[1]);
  for (int k = 0; k < a.shape[1]; ++k) {
    Value* row = nullptr;
    if (folded_b == folded_loads_.end()) {
      row = b_rows[static_cast<size_t>(k)];
    } else {
      Access from = access(*folded_b->second, 2, 2);
      row = load_row(from, row_pointer(from, k), from.strides[1], nullptr, nullptr, b.shape[1],
                     nullptr);
    }
    row = cast(b.dtype, acc.dtype, row);
    for (int m = 0; m < acc.shape[0]; ++m) {
      Value* scalar = dot_a_element(op.operands[1], a_rows, m, k);
      Value* repeated = ir_.CreateVectorSplat(n, cast(a.dtype, acc.dtype, scalar));
      Value*& sum = out[static_cast<size_t>(m)];
      if (is_floating(acc.dtype)) {
        sum = ir_.CreateIntrinsic(llvm::Intrinsic::fma, {sum->getType()}, {repeated, row, sum});
      } else {
        sum = ir_.CreateAdd(sum, ir_.CreateMul(repeated, row));
      }
    }
  }
  values_[op.results[0]] = from_rows(std::move(out), acc);
}

// Four bytes a[row, 4 * group …] as one i32.
llvm::Value* HostEmitter::group_of_row(ValueId a, Value* words, int row, int group) {
  auto folded = folded_loads_.find(a);
  if (folded == folded_loads_.end()) {
    return lane(words, int64_t{row} * (type(a).shape[1] / 4) + group);
  }
  Access from = access(*folded->second, 2, 2);
  Value* pointer = element_pointer(from.dtype, row_pointer(from, row), index_constant(4 * group));
  return ir_.CreateAlignedLoad(ir_.getInt32Ty(), pointer, llvm::Align(1));
}

// Every lane's dword number `group`.
llvm::Value* HostEmitter::groups_of_lanes(Value* words, int lanes, int group) {
  int groups = static_cast<int>(
      llvm::cast<llvm::FixedVectorType>(words->getType())->getNumElements()) / lanes;
  if (groups == 1) return words;
  std::vector<int> order;
  for (int i = 0; i < lanes; ++i) order.push_back(i * groups + group);
  return ir_.CreateShuffleVector(words, order);
}

void HostEmitter::dot_i8(const Operation& op) {
  const Type &acc = type(op.operands[0]), &a = type(op.operands[1]), &b = type(op.operands[2]);
  int m = acc.shape[0], n = acc.shape[1], groups = a.shape[1] / 4;
  auto words_of = [&](ValueId id) {
    const Type& t = type(id);
    return ir_.CreateBitCast(flat(tile(id), t),
                             vector_of(ir_.getInt32Ty(), static_cast<int>(t.elements() / 4)));
  };
  Value* a_words = folded_loads_.contains(op.operands[1]) ? nullptr : words_of(op.operands[1]);
  Value* b_words = words_of(op.operands[2]);
  std::vector<Value*> out = rows(tile(op.operands[0]), acc);
  for (int group = 0; group < groups; ++group) {
    Value* lanes = groups_of_lanes(b_words, b.shape[0], group);
    for (int row = 0; row < m; ++row) {
      Value* four = group_of_row(op.operands[1], a_words, row, group);
      Value* repeated = ir_.CreateVectorSplat(static_cast<unsigned>(n), four);
      Value*& sum = out[static_cast<size_t>(row)];
      sum = four_bytes(sum, repeated, a.dtype == DType::kI8, lanes);
    }
  }
  values_[op.results[0]] = from_rows(std::move(out), acc);
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
    auto id = wide ? llvm::Intrinsic::x86_avx512_vpdpbusd_512
                   : llvm::Intrinsic::x86_avx512_vpdpbusd_256;
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
  if (a_signed) return multiply(llvm::Intrinsic::aarch64_neon_sdot, acc, x);
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
