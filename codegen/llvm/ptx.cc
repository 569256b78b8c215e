#include "codegen/llvm/ptx.h"

#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/InlineAsm.h>

#include <algorithm>

#include "base/error.h"

namespace tenon::codegen::ptx {

namespace {

using I = Instruction;

struct Row {
  Instruction instruction;
  const char* text;
  const char* constraints;
  bool pure = false;  // may be moved, merged and dropped
};

// clang-format off
constexpr Row kTable[] = {
    {I::kBarrierInit, "mbarrier.init.shared::cta.b64 [$0], $1;", "r,r"},
    {I::kBarrierExpect, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r"},
    {I::kBarrierArrive, "@$0 mbarrier.arrive.shared::cta.b64 _, [$1];", "b,r"},
    {I::kBarrierTryWait, "mbarrier.try_wait.parity.shared::cta.b64 $0, [$1], $2;", "=b,r,r"},
    {I::kElect, "elect.sync _|$0, 0xffffffff;", "=b"},
    {I::kFenceBarrierInit, "fence.mbarrier_init.release.cluster;", ""},
    {I::kFenceDevice, "fence.acq_rel.gpu;", ""},
    {I::kFenceAsyncProxy, "fence.proxy.async.shared::cta;", ""},
    {I::kBulkLoad, "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], $2, [$3], $4;", "r,l,r,r,l"},
    {I::kTmaLoad2d, "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1, {$2, $3}], [$4], $5;", "r,l,r,r,r,l"},
    {I::kTmaLoad3d, "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1, {$2, $3, $4}], [$5], $6;", "r,l,r,r,r,r,l"},
    {I::kPrefetchTensorMap, "prefetch.tensormap [$0];", "l"},
    {I::kProductFence, "wgmma.fence.sync.aligned;", ""},
    {I::kProductCommit, "wgmma.commit_group.sync.aligned;", ""},
    {I::kProductWait, "wgmma.wait_group.sync.aligned $0;", "n"},
    {I::kSetMaxNRegDec, "setmaxnreg.dec.sync.aligned.u32 $0;", "n"},
    {I::kSetMaxNRegInc, "setmaxnreg.inc.sync.aligned.u32 $0;", "n"},
    {I::kGridDepLaunch, "griddepcontrol.launch_dependents;", ""},
    {I::kGridDepWait, "griddepcontrol.wait;", ""},
    {I::kStoreMatrices, "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1, $2, $3, $4};", "r,r,r,r,r"},
    {I::kStoreTwoMatrices, "stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [$0], {$1, $2};", "r,r,r"},
    {I::kStoreUnit, "@$0 st.global.v4.b32 [$1], {$2, $3, $4, $5};", "b,l,r,r,r,r"},
    {I::kStoreHalf, "@$0 st.global.b16 [$1], $2;", "b,l,h"},
    {I::kStoreWord, "@$0 st.global.b32 [$1], $2;", "b,l,r"},
    {I::kDequantizeE4M3, "cvt.rn.f16x2.e4m3x2 $0, $1;", "=r,h", true},
    {I::kMergeBits, "lop3.b32 $0, $1, $2, $3, 0xe4;", "=r,r,r,r", true},
    {I::kReciprocal, "rcp.approx.f32 $0, $1;", "=f,f", true},
    {I::kPin, "", "=r,0"},
};
// clang-format on

const Row& row_of(Instruction instruction) {
  for (const Row& row : kTable) {
    if (row.instruction == instruction) return row;
  }
  throw InternalError("an instruction is missing in the table of ptx.cc");
}

llvm::CallInst* call(llvm::IRBuilderBase& ir, llvm::Type* result, const std::string& text,
                     const std::string& constraints, std::span<llvm::Value* const> operands,
                     bool pure) {
  std::vector<llvm::Type*> types;
  for (llvm::Value* operand : operands) types.push_back(operand->getType());
  auto* signature = llvm::FunctionType::get(result, types, false);
  auto* assembly = llvm::InlineAsm::get(signature, text, constraints, /*hasSideEffects=*/!pure);
  llvm::CallInst* out =
      ir.CreateCall(signature, assembly, llvm::ArrayRef(operands.data(), operands.size()));
  out->setDoesNotThrow();
  if (pure) {
    out->setDoesNotAccessMemory();
  } else {
    out->setConvergent();
  }
  return out;
}

llvm::Type* result_of(llvm::IRBuilderBase& ir, Instruction instruction) {
  switch (instruction) {
    case I::kBarrierTryWait:
    case I::kElect:
      return ir.getInt1Ty();
    case I::kDequantizeE4M3:
    case I::kMergeBits:
    case I::kPin:
      return ir.getInt32Ty();
    case I::kReciprocal:
      return ir.getFloatTy();
    default:
      return ir.getVoidTy();
  }
}

std::string list(size_t first, size_t count) {
  std::string out = "{";
  for (size_t i = 0; i < count; ++i) out += fmt::format("{}${}", i > 0 ? ", " : "", first + i);
  return out + "}";
}

// Outputs that are inputs as well, with the other inputs between them.
std::string tied(size_t count, const std::string& others) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += i > 0 ? ",=f" : "=f";
  out += others;
  for (size_t i = 0; i < count; ++i) out += fmt::format(",{}", i);
  return out;
}

std::vector<llvm::Value*> call_tied(llvm::IRBuilderBase& ir, const std::string& text,
                                    const std::string& others, std::span<llvm::Value* const> sums,
                                    std::vector<llvm::Value*> operands) {
  operands.insert(operands.end(), sums.begin(), sums.end());
  std::vector<llvm::Type*> floats(sums.size(), ir.getFloatTy());
  auto* result = llvm::StructType::get(ir.getContext(), floats);
  llvm::Value* all = call(ir, result, text, tied(sums.size(), others), operands, /*pure=*/false);
  std::vector<llvm::Value*> out;
  for (size_t i = 0; i < sums.size(); ++i) {
    out.push_back(ir.CreateExtractValue(all, static_cast<unsigned>(i)));
  }
  return out;
}

}  // namespace

llvm::Value* emit(llvm::IRBuilderBase& ir, Instruction instruction,
                  std::span<llvm::Value* const> operands) {
  const Row& row = row_of(instruction);
  return call(ir, result_of(ir, instruction), row.text, row.constraints, operands, row.pure);
}

bool has_product(int columns) { return columns % 8 == 0 && columns >= 8 && columns <= 256; }

std::vector<llvm::Value*> multiply_async(llvm::IRBuilderBase& ir, DType dtype,
                                         std::span<llvm::Value* const> sums,
                                         std::span<llvm::Value* const> left, llvm::Value* right,
                                         bool rows_are_k) {
  size_t count = sums.size();
  bool in_registers = left.size() > 1;
  bool tf32 = dtype == DType::kF32;
  const char* type = tf32 ? "tf32" : dtype == DType::kF16 ? "f16" : "bf16";
  size_t next = count + left.size();
  // Which of the operands in memory are turned: none of tf32 can be.
  std::string turned = tf32           ? ""
                       : in_registers ? fmt::format(", {:d}", rows_are_k)
                                      : fmt::format(", 0, {:d}", rows_are_k);
  // The numbers before them: signs of the operands.
  std::string text = fmt::format(
      "wgmma.mma_async.sync.aligned.m64n{}k{}.f32.{}.{} {}, {}, ${}, ${}, 1, 1{};", count * 2,
      tf32 ? 8 : 16, type, type, list(0, count),
      in_registers ? list(count, left.size()) : fmt::format("${}", count), next, next + 1, turned);
  // Sums that begin as zero need no registers before.
  bool fresh = std::ranges::all_of(sums, [](const llvm::Value* sum) {
    auto* number = llvm::dyn_cast<llvm::ConstantFP>(sum);
    return number && number->isExactlyValue(0.0);
  });
  std::vector<llvm::Value*> before(sums.begin(), sums.end());
  if (fresh) std::ranges::fill(before, llvm::UndefValue::get(ir.getFloatTy()));
  std::vector<llvm::Value*> operands(left.begin(), left.end());
  operands.insert(operands.end(), {right, ir.getInt1(!fresh)});
  return call_tied(ir, text, in_registers ? ",r,r,r,r,l,b" : ",l,l,b", before, operands);
}

std::vector<llvm::Value*> finish_products(llvm::IRBuilderBase& ir,
                                          std::span<llvm::Value* const> sums, int running,
                                          std::span<llvm::Value* const> left) {
  std::string words;
  for (size_t i = 0; i < left.size(); ++i) words += ",r";
  return call_tied(ir, fmt::format("wgmma.wait_group.sync.aligned {};", running), words, sums,
                   {left.begin(), left.end()});
}

}  // namespace tenon::codegen::ptx
