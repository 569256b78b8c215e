// The tile IR: structured SSA over small tiles with static shapes. One Kernel is one launch.
//
// A kernel is run once per task: `task` (an index in [0, tasks)) names its share of the work.
// Values are either indices (signed 64-bit scalars: sizes, offsets, loop counters) or tiles: an
// element type and a static shape of rank 0, 1 or 2, rank 0 being a scalar. Elements are computed
// in bool, integers of 8 to 64 bits, f16, bf16, f32 and f64; smaller formats live in memory as
// bytes and are taken apart by `shift`, `and`, `lookup` and the dequantize_* / quantize_*
// functions.
//
// Memory is reached only through buffers (kernel parameters, or scratch made by `alloc`) with an
// element offset and one stride per tile dimension. A load or store may carry an extent per
// dimension: lanes at or past it are not touched and read as `fill`. Edges of a problem are always
// expressed so, never by padding a tensor.
//
// A pipeline is a loop in two halves: `produce` asks for what step i needs, `consume` computes with
// it, and between them lie rings: stages on the chip that copies fill ahead of the arithmetic. Step
// number n of the pipelines that use a ring (counted over the whole task) uses stage n modulo the
// number of stages. `produce` may run as many steps ahead as there are stages.
//
// Text form, one op a line (text.h):
//   kernel @row_sum(%x: buffer<f32>, %y: buffer<f32>, %n: index) {
//     %0 = task : index
//     %1 = index.mul %0, %n : index
//     %2 = constant 0.0 : f32[16]
//     %3 = for %4 = 0 to %n step 16 carry(%5 = %2) {
//       %6 = index.add %1, %4 : index
//       %7 = index.sub %n, %4 : index
//       %8 = load %x[%6] strides(1) extents(%7) fill 0.0 : f32[16]
//       %9 = add %5, %8 : f32[16]
//       yield %9
//     } : f32[16]
//     %10 = reduce.add %3 axis 0 : f32[]
//     store %y[%0], %10 : f32[]
//   }
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/convert.h"
#include "base/dtype.h"

namespace tenon::codegen {

using ValueId = int32_t;
inline constexpr ValueId kNone = -1;

struct Type {
  enum class Kind : uint8_t { kIndex, kTile, kBuffer, kRing } kind = Kind::kIndex;
  DType dtype = DType::kUndefined;  // element type of a tile, buffer or ring
  std::vector<int> shape;           // of a tile, or of a ring's stage: rank 0, 1 or 2

  static Type index() { return {}; }
  static Type tile(DType dtype, std::vector<int> shape = {}) {
    return {Kind::kTile, dtype, std::move(shape)};
  }
  static Type buffer(DType dtype) { return {Kind::kBuffer, dtype, {}}; }
  static Type ring(DType dtype, std::vector<int> shape) {
    return {Kind::kRing, dtype, std::move(shape)};
  }
  bool operator==(const Type&) const = default;
  int64_t elements() const;
};

enum class Op : uint8_t {
  // Indices.
  kTask,           // the task number
  kIndexConstant,  // attribute: integer
  kIndexAdd,
  kIndexSub,
  kIndexMul,
  kIndexDiv,
  kIndexRem,  // of non-negative numbers
  kIndexMin,
  kIndexMax,
  kIndexLess,
  kIndexEqual,     // index x index -> tile bool[]
  kIndexSelect,    // bool[], index, index -> index
  kIndexFromTile,  // integer tile of rank 0 -> index
  // Making tiles.
  kConstant,  // attribute: number (or integer for integer types and bool), splat; a non-empty
              // `integers` is a rank-1 table instead, one entry each (floats: the bits of a double)
  kSplat,     // tile[] -> any shape
  kFromIndex,  // index -> integer or float tile[]
  kIota,       // 0, 1, 2 … along `axis`
  // Elementwise: operands have one shape; see Fn.
  kUnary,
  kBinary,
  kTernary,
  kCompare,  // -> bool tile
  kSelect,   // bool, x, y
  kCast,     // numeric conversion to the result's dtype, as base/convert.h does it: floats to
             // integers truncate, and what does not fit wraps or is the smallest integer
  kBitcast,  // same bits: u32[m,n] -> i32[m,n], or narrower elements, low bits first: f16[m,2*n]
  // Shapes.
  kBroadcast,  // size-1 (or missing leading) dimensions are repeated to the result's shape
  kReshape,    // same elements in row-major order
  kTranspose,  // rank 2
  kSlice,      // static offsets per dimension in `integers`; size from the result's shape
  kConcat,     // along `axis`
  kPermute,    // bit i of a result's row-major element number is bit integers[i] of the source's;
               // for sizes that are powers of two
  kReduce,     // Fn add, mul, min, max, and, or along `axis` (dropped from the shape)
  // Tables and dots.
  kLookup,  // operand 0: table, a rank-1 tile of 16 (or 256) elements; operand 1: integer codes,
            // of which only the low 4 (8) bits count
  kDot,     // acc[m,n] + a[m,k] * b[k,n] in the type of acc (f32: one fma per k, in order). With
            // `integer` groups: as many products at once, rows m/groups of a each with columns of
            // its own, b[k,groups*c]; where n is more than c, columns repeat. Or with rows of
  // its own, b[groups*k,n]. With `integers` block, first and zeros, and one column for each group:
  // products of k are added to column first + k / block alone, so that blocks of k can be scaled
  // afterwards. b is loaded from scratch then, and eight zeros lie at `zeros` behind the first
  // element of each of its columns. With `tf32`, of f32: both operands are rounded to 10 bits of
  // mantissa first, to nearest, ties to even as TMA does it (GPUs without it: away from zero); NaN
  // stays
  kDotI8,    // acc i32[m,n] + a[m,k] * b[n,k], one u8 or both i8, k a multiple of 4: exact, no
             // saturation. Fast with k = 4 and b in memory order [n][4], that is a contiguous load
             // as i8[n,4] or a reshape of i8[4*n]: one dword per lane. So weights are packed as
             // [k/4][n][4] and a loop over k/4 takes one such group at a time.
  kTileDot,  // c, offset, a, offset, b, offset, distance, k: c += a * b in memory, for processors
             // whose tile registers multiply whole blocks. `integers`: rows and columns, 16 or 32
             // of each. c is f32[rows][columns]; a bf16[rows / 16][k / 32][16][32], its sixteens of
             // rows `distance` elements apart; b bf16[k / 2][columns][2]; k a multiple of 32. Sums
             // are f32, in any order; what is below 2^-126 may count as zero
  // Memory.
  kAlloc,     // scratch of `integer` elements, 64-byte aligned, private to the task
  kLoad,      // buffer, offset, strides…, extents… (kNone: whole) ; attribute number = fill
  kStore,     // buffer, offset, value, strides…, extents…
  kGather,    // buffer, offset, integer tile of element indices, bool mask or kNone; fill
  kScatter,   // buffer, offset, integer tile of element indices, value, bool mask or kNone
  kPrefetch,  // buffer, offset: a hint
  kArrive,    // i32 buffer, offset -> index: how many tasks arrived at that counter before. What
              // they stored before is visible to whoever arrives after them.
  // Pipelines.
  kRing,      // `integer` stages; stands in the body of the kernel
  kBulkLoad,  // ring, stage, buffer, offset: fills the stage with consecutive elements
  kTmaLoad,   // ring, stage, buffer, row, column, rows, columns, stride: fills the stage from (row,
              // column) of a matrix [rows, columns]; zeros outside. The last three are parameters
              // or constants, and so is the buffer. With `integer` groups: as many boxes that lie
              // side by side in the matrix, one below the other in the stage; columns and column
              // are multiples of a box's width
  kRead,  // ring, stage, offset (kNone: 0), extent (kNone: whole) -> tile of the stage's elements,
          // consecutive ones or with the strides in `integers`, one per dimension (0 repeats). Rows
          // at or past the extent, of tiles of rank 2, are zeros whatever the stage holds there
  kPipeline,  // lo, hi, initial values…; `integer` stages; regions: produce(counter, stage) and
              // consume(counter, stage, carried…); only what is uniform, single numbers from
              // parameters that the kernel never writes included, decides what produce does
  // Control. Regions hold their own ops; the last is kYield.
  kFor,  // lo, hi, step, initial values…; region args: counter, carried…
  kIf,   // bool[]; regions: then, else; results from both yields
  kYield,
};

enum class Fn : uint8_t {
  kNone,
  // unary
  kNeg,
  kAbs,
  kNot,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kFloor,
  kCeil,
  kTrunc,
  kRound /* half to even */,
  kExp,
  kExp2,
  kLog,
  kLog2,
  kSin,
  kCos,
  kTan,
  kTanh,
  kErf,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kIsNan,
  kIsInf,
  kSign,
  kDequantizeF8E4M3FN,
  kDequantizeF8E4M3FNUZ,
  kDequantizeF8E5M2,
  kDequantizeF8E5M2FNUZ,
  kDequantizeF8E8M0,
  kDequantizeF4E2M1,  // u8 codes -> f32, exact
  kQuantizeF8E4M3FN,
  kQuantizeF8E4M3FNUZ,
  kQuantizeF8E5M2,
  kQuantizeF8E5M2FNUZ,
  kQuantizeF8E8M0,
  kQuantizeF4E2M1,  // f32 -> u8 codes, as base/convert.h does it; the rule is in `integer`
  // binary
  kAdd,
  kSub,
  kMul,
  kDiv,
  kRem /* sign of the dividend */,
  kMod /* sign of the divisor */,
  kMin,
  kMax /* NaN wins */,
  kPow,
  kAtan2,
  kAnd,
  kOr,
  kXor,
  kShiftLeft,
  kShiftRight,
  // ternary
  kFma,
  // compare
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
};

// Words of the text form: "index.add", "load"; "add", "dequantize_f4e2m1".
std::string_view name(Op op);  // and all else that is known of it: op_info.h
std::string_view name(Fn fn);

// The rule of an quantize_* as its attribute `integer`, and back. Only e8m0 has a rounding mode.
int64_t encode_attribute(EncodeRule rule);
EncodeRule encode_rule(int64_t attribute);

// Bounds that verify() holds kernels to, so that code size and stack use stay sane.
inline constexpr int64_t kMaxTileElements = 1 << 15;
inline constexpr int64_t kMaxStages = 16;               // of a ring
inline constexpr int64_t kMaxScratchBytes = 256 << 10;  // all kAlloc of a kernel together

struct Operation;

struct Region {
  std::vector<ValueId> arguments;
  std::vector<Operation> operations;
};

struct Operation {
  Op op{};
  Fn fn = Fn::kNone;
  std::vector<ValueId> operands = {};  // kNone where optional
  std::vector<ValueId> results = {};
  double number = 0;    // kConstant of a float type, fill of kLoad and kGather
  int64_t integer = 0;  // kIndexConstant, kConstant of an integer type, size of kAlloc …
  int axis = 0;
  std::vector<int64_t> integers = {};  // kSlice, kConstant
  bool tf32 = false;                   // kDot
  std::vector<Region> regions = {};
};

struct Parameter {
  std::string name;
  Type type;  // a buffer or an index
  // A buffer that no launch of the program writes, weights or what the caller brings: it may be
  // read before the wait of programmatic dependent launch (PDL).
  bool constant = false;
  // A buffer that no launch touches but this one: it may be read and written as soon.
  bool own = false;
  // A buffer that begins at a multiple of 16 bytes, whoever launches.
  bool aligned = false;
};

// A deque: who emits code holds on to the type of one value while others are added.
using Types = std::deque<Type>;

// Called as  void fn(void* const* buffers, const int64_t* indices, int64_t first, int64_t last)
// with the buffers and indices in parameter order; runs tasks [first, last).
struct Kernel {
  std::string name;
  std::vector<Parameter> parameters;  // parameter i is value i
  Types types;                        // of every value
  Region body;
  // Programmatic dependent launch: CTAs come in while the previous launch ends, wait for it, and
  // let those of the next one come in. Pipelines always do.
  bool pdl = false;
  // CTAs, of this launch or of the next, that the registers of an SM are to have room for; 0: as
  // many as its memory has, if few registers are alive.
  int ctas_per_sm = 0;
};

}  // namespace tenon::codegen
