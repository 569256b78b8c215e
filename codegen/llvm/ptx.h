// The instructions that LLVM has no name for, as inline assembly: one string is one instruction,
// and all of them are in ptx.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/dtype.h"

namespace llvm {
class IRBuilderBase;
class Type;
class Value;
}  // namespace llvm

namespace tenon::codegen::ptx {

// Addresses in shared memory are i32.
enum class Instruction : uint8_t {
  kBarrierInit,       // barrier, arrivals
  kBarrierExpect,     // barrier, bytes: arrives, and waits for that many bytes as well
  kBarrierArrive,     // i1: whether at all, barrier
  kBarrierTryWait,    // barrier, parity -> i1
  kElect,             // -> i1: true in one lane of a warp that is together
  kFenceBarrierInit,  // TMA sees barriers that were made before
  kFenceDevice,       // what this thread saw and wrote, for all CTAs
  kFenceAsyncProxy,   // and what was written before
  kBulkLoad,          // to, from (generic), bytes, barrier, cache policy
  kTmaLoad2d,
  kTmaLoad3d,          // to, descriptor (generic), column, row, barrier, cache policy
  kPrefetchTensorMap,  // descriptor
  kProductFence,       // registers written before may be read by products
  kProductCommit,      // ends a group of products
  kProductWait,        // at most so many groups are still running
  kSetMaxNRegDec,      // count
  kSetMaxNRegInc,      // count
  kGridDepLaunch,      // PDL: the next launch may begin
  kGridDepWait,        // PDL: everything that earlier launches wrote is there
  kStoreMatrices,      // address, four words: 8x8 matrices of 16 bits, turned
  kStoreTwoMatrices,   // address, two words
  kStoreUnit,          // i1: whether at all, address in global memory, four words
  kStoreHalf,          // i1, address, i16
  kStoreWord,          // i1, address, i32
  kDequantizeE4M3,     // two f8e4m3fn in an i16 -> two f16 in an i32
  kMergeBits,   // i32, i32, i32: bits of the first where the third has ones, else the second's
  kReciprocal,  // f32, within 1 ULP, subnormal numbers kept
  kPin,         // i32 -> the same, computed before anything that follows
};

llvm::Value* emit(llvm::IRBuilderBase& ir, Instruction instruction,
                  std::span<llvm::Value* const> operands);

// Whether the assembler knows a product of 64 rows and so many columns.
bool has_product(int columns);

// sums[64, columns] += left[64, 16] * right[16, columns], asynchronously. `left` is four words of
// registers or one descriptor (i64) of shared memory, `right` a descriptor: of columns whose
// elements lie side by side, or of rows where `rows_are_k`. f32 operands are tf32, 8 along k: both
// descriptors, and no rows that are k.
std::vector<llvm::Value*> multiply_async(llvm::IRBuilderBase& ir, DType dtype,
                                         std::span<llvm::Value* const> sums,
                                         std::span<llvm::Value* const> left, llvm::Value* right,
                                         bool rows_are_k = false);

// All products are done but those of the last `running` groups; these sums are what they are from
// here on. `left`: words that the products read, whose registers are theirs until then.
std::vector<llvm::Value*> finish_products(llvm::IRBuilderBase& ir,
                                          std::span<llvm::Value* const> sums, int running = 0,
                                          std::span<llvm::Value* const> left = {});

}  // namespace tenon::codegen::ptx
