// Products whose right operand is a stage of a ring, or rows of scratch: wgmma where the
// architecture has it, which runs beside everything else, or mma.sync. Sums lie the same in both.
#include <fmt/format.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"

namespace tenon::codegen {

namespace {

using ptx::Instruction;

// A step is 16 k of 16-bit elements, or 8 of tf32: 32 bytes, two units of ldmatrix.
constexpr int kStep = 16, kBlockRows = 64, kRowBytes = 128;
constexpr int kStepBytes = 32, kUnitBytes = 16;
constexpr int kWarpgroup = 128, kClearBarrier = 2;  // of the first warpgroup

// Of a matrix in swizzled rows of 128, 64 or 32 bytes: how far eight rows are from the next eight,
// and which of the three it is.
uint64_t descriptor_bits(int row_bytes) {
  uint64_t mode = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
  return uint64_t{1} << 16 | static_cast<uint64_t>(8 * row_bytes >> 4) << 32 | mode << 62;
}

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
  // A left operand from before the pipeline asks for no arithmetic that products could run beside.
  auto is_from_before = [&](ValueId id) {
    const Operation* made = definitions_[id];
    bool here = made && made >= region.operations.data() &&
                made < region.operations.data() + region.operations.size();
    return !here && std::ranges::count(region.arguments, id) == 0;
  };
  for (const Operation& op : region.operations) {
    if (!is_product_here(&op) || is_from_before(op.operands[1])) continue;
    if (may_run_on(op.results[0])) in_flight_.insert(&op);
  }
}

struct GpuEmitter::RingProduct {
  const Operation& op;
  RingDot operands;
  int columns, blocks, element_bytes, steps;

  RingProduct(const Kernel& kernel, const Operation& dot, RingDot from, int threads)
      : op(dot),
        operands(from),
        columns(kernel.types[dot.results[0]].shape[1]),
        blocks(kernel.types[dot.results[0]].shape[0] / kBlockRows / (threads / 128)),
        element_bytes(bit_width(kernel.types[dot.operands[1]].dtype) / 8),
        steps(kernel.types[dot.operands[1]].shape[1] * element_bytes / kStepBytes) {}

  int step() const { return kStepBytes / element_bytes; }  // k
  int unit() const { return kUnitBytes / element_bytes; }
  size_t sums() const { return static_cast<size_t>(columns / 2); }  // of a block, in a thread
};

namespace {

// Short products need more of them to fill the time until the first has ended; long ones need the
// registers.
int groups_wanted_in_flight(int columns) { return columns >= 128 ? 1 : columns >= 64 ? 2 : 3; }

}  // namespace

// Groups of products, one for each step of k, that stay in flight from one step to the next and
// from one round of a pipeline's loop to the next. None may still read a stage, or words of a left
// operand, that a round has to overwrite: words are written while the groups in flight and the
// step's own read theirs, and each round writes the registers of the round before.
int GpuEmitter::groups_in_flight(const Region& consume) const {
  int of_round = 0, wanted = 3;
  bool in_registers = false;
  for (const Operation& op : consume.operations) {
    if (!in_flight_.contains(&op)) continue;
    RingProduct product(kernel_, op, *ring_dot(kernel_, definitions_, op, threads_), threads_);
    of_round += product.steps;
    wanted = std::min(wanted, groups_wanted_in_flight(product.columns));
    in_registers |= !product.operands.left;
  }
  return std::max(0, std::min(wanted, in_registers ? of_round - 2 : of_round));
}

void GpuEmitter::multiply_ring(const Operation& op, const RingDot& operands) {
  RingProduct product(kernel_, op, operands, threads_);
  for (const Operation* read : {operands.left, operands.right}) {
    if (op.tf32 && !rings_of_tf32_.contains(read->operands[0])) {
      throw UserError(
          fmt::format("kernel @{}: what tf32 products read is rounded in its stage, so nothing "
                      "else may read it",
                      kernel_.name));
    }
    if (!read || read->op == Op::kLoad || rings_[read->operands[0]].row_bytes > 0) continue;
    throw UserError(fmt::format(
        "kernel @{}: products read stages that TMA loads fill, not bulk loads", kernel_.name));
  }
  if (!op.integers.empty() && (product.columns != 8 || product.steps % 2 != 0 || !operands.right ||
                               operands.right->op != Op::kLoad)) {
    throw UserError(
        fmt::format("kernel @{}: products by blocks have eight columns of sums, an even number of "
                    "steps of {} k, and a right operand from scratch",
                    kernel_.name, kStep));
  }
  if (!specialised_ || !multiplies_async(op)) return multiply_in_order(product);
  runs_until_read(op) ? multiply_until_read(product) : multiply_async(product);
}

bool GpuEmitter::multiplies_async(const Operation& op) const {
  if (op.op != Op::kDot || op.integer > 0) return false;
  auto product = ring_dot(kernel_, definitions_, op, threads_);
  return product && (product->rows_are_k || type(op.results[0]).shape[1] > kFewColumns);
}

// The four words of a block of rows for one step.
GpuEmitter::Tile GpuEmitter::left_words(const RingProduct& product, int block, int step) {
  Tile out;
  int first = 8 * (block * product.steps + step);
  for (int r = first; r < first + 8; r += 2) out.push_back(word(product.op.operands[1], r));
  return out;
}

llvm::Value* GpuEmitter::descriptor(const Operation& read) {
  Value* pointer = stage_pointer(rings_[read.operands[0]], single(read.operands[1]));
  Value* address = ir_.CreatePtrToInt(pointer, ir_.getInt32Ty());
  Value* units = ir_.CreateLShr(ir_.CreateAnd(address, number(0x3ffff)), 4);
  Value* whole = ir_.CreateOr(ir_.CreateZExt(units, ir_.getInt64Ty()),
                              ir_.getInt64(descriptor_bits(rings_[read.operands[0]].row_bytes)));
  int column = first_column(definitions_, read);
  return column == 0 ? whole : moved(whole, column * bit_width(type(read.results[0]).dtype) / 8);
}

// The right operand; its second half, where it has one, is as far away in every stage.
llvm::Value* GpuEmitter::right_stage(const RingProduct& product) {
  Value* first = descriptor(*product.operands.right);
  if (!product.operands.beside) return first;
  const Ring &left = rings_[product.operands.right->operands[0]],
             &right = rings_[product.operands.beside->operands[0]];
  auto distance = static_cast<uint64_t>(right.offset - left.offset) >> 4;
  return ir_.CreateAdd(first, ir_.getInt64((distance - 1) << 16));
}

// How far the right operand of one step is from that of the next.
int GpuEmitter::right_step_bytes(const RingProduct& product) {
  const Ring& ring = rings_[product.operands.right->operands[0]];
  return product.operands.rows_are_k ? kStep * ring.row_bytes : kStepBytes;
}

// The left operand of one step, of each block of rows: four words of registers, pinned so that they
// are made before the fence that follows, or a descriptor. Words from before this block of code are
// there already, and a copy of them between two products would hold up the second.
std::vector<GpuEmitter::Tile> GpuEmitter::left_operands(const RingProduct& product, Value* stage,
                                                        int step) {
  std::vector<Tile> out;
  for (int block = 0; block < product.blocks; ++block) {
    if (stage) {
      out.push_back({moved(stage, block * kBlockRows * kRowBytes + step * kStepBytes)});
      continue;
    }
    Tile words = left_words(product, block, step);
    for (Value*& word : words) {
      auto* made = llvm::dyn_cast<llvm::Instruction>(word);
      bool is_made_here = made && made->getParent() == ir_.GetInsertBlock();
      if (is_made_here && !llvm::isa<llvm::PHINode>(made)) {
        word = instruct(Instruction::kPin, {word});
      }
    }
    out.push_back(words);
  }
  return out;
}

// Where the left operand of this warpgroup begins; null: in registers.
llvm::Value* GpuEmitter::left_stage(const RingProduct& product) {
  if (!product.operands.left) return nullptr;
  Value* block = times(ir_.CreateLShr(thread_, 7), product.blocks);
  Value* bytes = times(block, kBlockRows * kRowBytes >> 4);
  return ir_.CreateAdd(descriptor(*product.operands.left), ir_.CreateZExt(bytes, ir_.getInt64Ty()));
}

llvm::Value* GpuEmitter::moved(Value* descriptor, int64_t bytes) {
  return ir_.CreateAdd(descriptor, ir_.getInt64(static_cast<uint64_t>(bytes >> 4)));
}

// sums += left * right of one step, begun.
void GpuEmitter::begin_step(const RingProduct& product, const std::vector<Tile>& left, Value* right,
                            Tile& sums) {
  DType dtype = type(product.op.operands[1]).dtype;
  for (int block = 0; block < product.blocks; ++block) {
    auto first = sums.begin() + static_cast<int64_t>(product.sums()) * block;
    Tile part(first, first + static_cast<int64_t>(product.sums()));
    part = ptx::multiply_async(ir_, dtype, part, left[static_cast<size_t>(block)], right,
                               product.operands.rows_are_k);
    std::ranges::copy(part, first);
  }
}

void GpuEmitter::multiply_async(const RingProduct& product) {
  const Operation& op = product.op;
  Tile sums = in_layout(op.operands[0], layouts_[op.results[0]]);
  Value *right = right_stage(product), *left = left_stage(product);
  int depth = in_flight_.contains(&op) ? most_in_flight_ : groups_wanted_in_flight(product.columns);
  std::vector<Tile> current = left_operands(product, left, 0);
  for (int step = 0; step < product.steps; ++step) {
    instruct(Instruction::kProductFence, {});
    begin_step(product, current, moved(right, step * right_step_bytes(product)), sums);
    instruct(Instruction::kProductCommit, {});
    stages_in_flight_.commit();
    if (step + 1 < product.steps) current = left_operands(product, left, step + 1);
    instruct(Instruction::kProductWait, {number(depth)});
    stages_in_flight_.wait(depth);
    if (give_back_ && !stages_in_flight_.reads_stage_before()) {
      std::exchange(give_back_, nullptr)();
    }
  }
  if (!in_flight_.contains(&op)) sums = ptx::finish_products(ir_, sums);
  values_[op.results[0]] = std::move(sums);
}

// ---- products that run until somebody looks at their sums

// Whose left operand is there already: nothing is dequantised between its steps.
bool GpuEmitter::runs_until_read(const Operation& op) const {
  return multiplies_async(op) && !in_flight_.contains(&op) && !lazy_definition(op.operands[1]);
}

// Sums that another such product adds to run until somebody looks at that one's.
void GpuEmitter::find_running() {
  auto is_added_to = [&](const Operation* op) {
    return std::ranges::any_of(users_[op->results[0]], [&](const auto& user) {
      return user.second == 0 && runs_until_read(*user.first);
    });
  };
  for (bool found = true; found;) {
    found = std::erase_if(in_flight_, [&](const Operation* op) {
              return !lazy_definition(op->operands[1]) && is_added_to(op);
            }) > 0;
  }
}

void GpuEmitter::multiply_until_read(const RingProduct& product) {
  const Operation& op = product.op;
  Tile sums = in_layout(op.operands[0], layouts_[op.results[0]]);
  Value *right = right_stage(product), *stage = left_stage(product);
  std::vector<std::vector<Tile>> left;
  for (int step = 0; step < product.steps; ++step) {
    left.push_back(left_operands(product, stage, step));
  }
  instruct(Instruction::kProductFence, {});
  for (int step = 0; step < product.steps; ++step) {
    begin_step(product, left[static_cast<size_t>(step)],
               moved(right, step * right_step_bytes(product)), sums);
  }
  instruct(Instruction::kProductCommit, {});
  Running& now = running_[op.results[0]];
  if (auto before = running_.extract(op.operands[0])) now.left = before.mapped().left;
  for (const std::vector<Tile>& step : left) {
    for (const Tile& words : step) {
      if (!stage) now.left.insert(now.left.end(), words.begin(), words.end());
    }
  }
  now.group = ++groups_begun_;
  values_[op.results[0]] = std::move(sums);
}

void GpuEmitter::finish_running(ValueId id) {
  auto found = running_.find(id);
  if (found == running_.end()) return;
  const Running& running = found->second;
  values_[id] = ptx::finish_products(ir_, values_[id], groups_begun_ - running.group, running.left);
  running_.erase(found);
}

// Before an operation reads them. Sums that are only added to run on; nothing runs across the edge
// of a region, so that stages are given back, and other code begins, when all is done.
void GpuEmitter::finish_operands(const Operation& op) {
  if (running_.empty()) return;
  if (op.op == Op::kYield || !op.regions.empty()) {
    while (!running_.empty()) finish_running(running_.begin()->first);
    return;
  }
  bool adds = (op.op == Op::kDot && runs_until_read(op)) || rescales_running(op);
  for (size_t i = adds ? 1 : 0; i < op.operands.size(); ++i) finish_running(op.operands[i]);
}

// Sums times a number for each row, which is 1 for most: a warp whose rows all have 1 leaves them
// as they are. The branch stands before the wait, and with it all that was computed so far: the
// assembler moves a wait up as far as its block of code reaches.
bool GpuEmitter::rescales_running(const Operation& op) const {
  if (op.op != Op::kBinary || op.fn != Fn::kMul || !running_.contains(op.operands[0])) return false;
  const Operation* factor = definitions_[op.operands[1]];
  return factor && factor->op == Op::kBroadcast && layouts_[op.operands[1]].is_bits() &&
         layouts_[op.operands[1]] == layouts_[op.operands[0]];
}

void GpuEmitter::rescale_running(const Operation& op) {
  auto& context = module_.getContext();
  const Tile factors = tile(op.operands[1]);
  Value* changed = nullptr;
  std::set<Value*> seen;
  for (Value* factor : factors) {  // not in the order of addresses: equal kernels have equal code
    if (!seen.insert(factor).second) continue;
    Value* is_other = ir_.CreateFCmpUNE(factor, llvm::ConstantFP::get(factor->getType(), 1.0));
    changed = changed ? ir_.CreateOr(changed, is_other) : is_other;
  }
  Value* any =
      ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_vote_any_sync, {}, {ir_.getInt32(~0u), changed});
  auto* scale = llvm::BasicBlock::Create(context, "rescale", function_);
  auto* keep = llvm::BasicBlock::Create(context, "keep", function_);
  auto* after = llvm::BasicBlock::Create(context, "rescaled", function_);
  ir_.CreateCondBr(any, scale, keep);
  Running running = running_.extract(op.operands[0]).mapped();
  auto finished = [&] {
    return ptx::finish_products(ir_, tile(op.operands[0]), groups_begun_ - running.group,
                                running.left);
  };
  ir_.SetInsertPoint(scale);
  Tile scaled = finished();
  for (size_t r = 0; r < scaled.size(); ++r) scaled[r] = ir_.CreateFMul(scaled[r], factors[r]);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(keep);
  Tile kept = finished();
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
  Tile out;
  for (size_t r = 0; r < scaled.size(); ++r) {
    llvm::PHINode* either = ir_.CreatePHI(scaled[r]->getType(), 2);
    either->addIncoming(scaled[r], scale);
    either->addIncoming(kept[r], keep);
    out.push_back(either);
  }
  values_[op.results[0]] = std::move(out);
}

// wgmma reads what TMA loaded as it is.
void GpuEmitter::clear_for_products(const Operation& read) {
  auto multiplies = [&](const auto& user) { return multiplies_async(*user.first); };
  bool reads_stage = std::ranges::any_of(users_[read.results[0]], [&](const auto& user) {
    return multiplies(user) || (user.first->op == Op::kConcat &&
                                std::ranges::any_of(users_[user.first->results[0]], multiplies));
  });
  if (specialised_ && reads_stage && read.operands[3] != kNone) clear_rows(read);
}

// Rows of a stage at and past the extent of a read become zeros where they are. Each warpgroup does
// it for itself, so that none waits for another; both write the same.
void GpuEmitter::clear_rows(const Operation& read) {
  constexpr int kUnit = 16;
  const Ring& ring = rings_[read.operands[0]];
  int rows = type(read.results[0]).shape[0], units = ring.row_bytes / kUnit;
  Value* extent = single(read.operands[3]);
  auto& context = module_.getContext();
  auto* clear = llvm::BasicBlock::Create(context, "clear", function_);
  auto* after = llvm::BasicBlock::Create(context, "cleared", function_);
  ir_.CreateCondBr(ir_.CreateICmpSLT(extent, index_constant(rows)), clear, after);
  ir_.SetInsertPoint(clear);
  Value* first = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, extent, index_constant(0));
  Value* begin = times(ir_.CreateTrunc(first, ir_.getInt32Ty()), units);
  Value* base = stage_pointer(ring, single(read.operands[1]));
  auto* words = llvm::FixedVectorType::get(ir_.getInt32Ty(), 4);
  for (int unit = 0; unit < rows * units; unit += kWarpgroup) {
    Value* at = plus(ir_.CreateAnd(thread_, kWarpgroup - 1), unit);
    bool all = unit + kWarpgroup <= rows * units;
    Value* inside = all ? nullptr : ir_.CreateICmpULT(at, number(rows * units));
    when(both(ir_.CreateICmpUGE(at, begin), inside), [&] {
      Value* place = ir_.CreateInBoundsGEP(words, base, as_index(at));
      ir_.CreateAlignedStore(llvm::Constant::getNullValue(words), place, llvm::Align(kUnit));
    });
  }
  instruct(Instruction::kFenceAsyncProxy, {});
  Value* barrier = plus(ir_.CreateLShr(thread_, 7), kClearBarrier);
  ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier, {}, {barrier, number(kWarpgroup)});
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

// ---- mma.sync

llvm::Value* GpuEmitter::ring_place(const Operation& read, Value* row, Value* column) {
  if (read.op == Op::kLoad) {
    order_memory(read);
    Access from = access(read, 2, type(read.results[0]));
    Value* element = ir_.CreateAdd(ir_.CreateMul(as_index(row), from.row_stride), as_index(column));
    return ir_.CreateInBoundsGEP(memory_type(from.dtype), from.base, element);
  }
  const Ring& ring = rings_[read.operands[0]];
  column = plus(column, first_column(definitions_, read));
  int element_bytes = bit_width(type(read.results[0]).dtype) / 8;
  Value* byte = swizzled(ring, plus(times(row, ring.box_bytes), times(column, element_bytes)));
  return ir_.CreateInBoundsGEP(ir_.getInt8Ty(), stage_pointer(ring, single(read.operands[1])),
                               as_index(byte));
}

GpuEmitter::Tile GpuEmitter::load_ring_matrices(const Operation& read, Value* row, Value* column,
                                                int count, bool transposed) {
  using namespace llvm::Intrinsic;
  Value* pointer = ring_place(read, row, column);
  auto id = count == 4 ? (transposed ? nvvm_ldmatrix_sync_aligned_m8n8_x4_trans_b16
                                     : nvvm_ldmatrix_sync_aligned_m8n8_x4_b16)
                       : (transposed ? nvvm_ldmatrix_sync_aligned_m8n8_x2_trans_b16
                                     : nvvm_ldmatrix_sync_aligned_m8n8_x2_b16);
  Value* loaded = ir_.CreateIntrinsic(id, {pointer->getType()}, {pointer});
  Tile out;
  for (int i = 0; i < count; ++i) {
    out.push_back(ir_.CreateExtractValue(loaded, static_cast<unsigned>(i)));
  }
  return out;
}

// Words of tf32 products as the instruction wants them. TMA has rounded them already.
void GpuEmitter::round_words(const RingProduct& product, Tile& words) {
  if (!product.op.tf32 || specialised_) return;
  for (Value*& word : words) {
    Value* number = ir_.CreateBitCast(word, ir_.getFloatTy());
    word = ir_.CreateIntrinsic(llvm::Intrinsic::nvvm_f2tf32_rna, {}, {number});
  }
}

// Words of `count` fragments of 8 columns that are computed in registers. Columns repeat where a
// warp has fewer than the sums.
GpuEmitter::Tile GpuEmitter::computed_words(const RingProduct& product, int column, int count,
                                            int step) {
  const Operation& op = product.op;
  int fragments = type(op.operands[2]).shape[1] / 8;
  if (!product.operands.rows_are_k) fragments /= static_cast<int>(op.integer);
  Tile out;
  for (int i = 0; i < count; ++i) {
    int first = 4 * (step * fragments + (column / 8 + i) % fragments);
    for (int r : {first, first + 2}) out.push_back(word(op.operands[2], r));
  }
  return out;
}

// Words of `count` fragments of 8 columns from a stage whose rows are k. Rows past the stage's
// extent become zeros: a product with zero would not hide what is no number.
GpuEmitter::Tile GpuEmitter::right_words(const RingProduct& product, int column, int count,
                                         int step) {
  const Operation& op = product.op;
  int half = type(product.operands.right->results[0]).shape[1];
  bool is_beside = product.operands.beside && column >= half;
  const Operation& read = is_beside ? *product.operands.beside : *product.operands.right;
  if (is_beside) column -= half;
  Value* first = number(step * kStep);
  if (op.integer > 0) {
    auto warps = threads_ / kWarp / static_cast<int>(op.integer);
    first = plus(times(ir_.CreateUDiv(warp_, number(warps)), product.steps * kStep), first);
  }
  Value* next = count == 2 ? times(ir_.CreateLShr(lane_, 4), 8) : number(0);
  Tile words = load_ring_matrices(read, plus(first, ir_.CreateAnd(lane_, 15)), plus(next, column),
                                  2 * count, /*transposed=*/true);
  if (read.operands[3] == kNone) return words;
  for (size_t i = 0; i < words.size(); ++i) {  // a word holds rows 2t and 2t + 1, plus 8 if odd
    Value* row = plus(first, plus(times(ir_.CreateAnd(lane_, 3), 2), i % 2 == 0 ? 0 : 8));
    auto half = [&](Value* at, uint32_t bits) {
      return ir_.CreateSelect(is_before(read.operands[3], at), number(bits), number(0));
    };
    Value* kept = ir_.CreateOr(half(row, 0xffff), half(plus(row, 1), 0xffff0000));
    words[i] = ir_.CreateAnd(words[i], kept);
  }
  return words;
}

// Whether a row lies before an extent, which may be any index.
llvm::Value* GpuEmitter::is_before(ValueId extent, Value* row) {
  return ir_.CreateICmpSLT(as_index(row), single(extent));
}

// Blocks of k have columns of their own: lanes that say where rows of other columns are point at
// zeros behind each row. The upper lanes speak of the second of two steps.
llvm::Value* GpuEmitter::own_block(const RingProduct& product, Value* k, int step) {
  int64_t block = product.op.integers[0], first = product.op.integers[1];
  auto column_of = [&](int at) { return static_cast<int>(first + at * kStep / block); };
  Value* second = times(ir_.CreateLShr(lane_, 4), column_of(step + 1) - column_of(step));
  Value* is_own = ir_.CreateICmpEQ(ir_.CreateAnd(lane_, 7), plus(second, column_of(step)));
  return ir_.CreateSelect(is_own, k, number(static_cast<int>(product.op.integers[2])));
}

// Words of the left operand for all blocks of rows.
std::vector<GpuEmitter::Tile> GpuEmitter::left_blocks(const RingProduct& product, int step) {
  std::vector<Tile> left;
  for (int block = 0; block < product.blocks; ++block) {
    if (!product.operands.left) {
      left.push_back(left_words(product, block, step));
      continue;
    }
    Value* group = times(ir_.CreateLShr(warp_, 2), product.blocks * kBlockRows);
    Value* first = plus(group, times(ir_.CreateAnd(warp_, 3), 16));
    Value* row = plus(plus(first, block * kBlockRows), ir_.CreateAnd(lane_, 15));
    Value* k = plus(times(ir_.CreateLShr(lane_, 4), product.unit()), step * product.step());
    left.push_back(load_ring_matrices(*product.operands.left, row, k, 4));
    round_words(product, left.back());
  }
  return left;
}

void GpuEmitter::multiply_in_order(const RingProduct& product) {
  const Operation& op = product.op;
  DType dtype = type(op.operands[1]).dtype;
  Tile sums = in_layout(op.operands[0], layouts_[op.results[0]]);
  auto bit = [&](int shift) { return ir_.CreateAnd(ir_.CreateLShr(lane_, shift), number(1)); };
  // Of groups each warp has its own columns; where they are fewer than the sums', they repeat.
  int columns = product.columns;
  Value* first_column = number(0);
  if (op.integer > 0 && !product.operands.rows_are_k) {
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
    std::vector<Tile> left = left_blocks(product, step);
    for (int column = 0; column < product.columns; column += 16) {
      int count = std::min(2, (product.columns - column) / 8);
      Value* second = count == 2 ? times(ir_.CreateLShr(lane_, 4), 8) : number(0);
      Value* row = right_row(plus(plus(ir_.CreateAnd(lane_, 7), second), column));
      Value* k = plus(times(bit(3), product.unit()), step * product.step());
      Tile right;
      if (!product.operands.right) {
        right = computed_words(product, column, count, step);
      } else if (product.operands.rows_are_k) {
        right = right_words(product, column, count, step);
      } else if (product.columns == 8 && product.steps % 2 == 0) {
        Value* wide = plus(times(ir_.CreateLShr(lane_, 3), product.unit()), step * product.step());
        if (!op.integers.empty()) wide = own_block(product, wide, step);
        if (step % 2 == 0) {
          both = load_ring_matrices(*product.operands.right, row, wide, 4);
          round_words(product, both);
        }
        right.assign(both.begin() + step % 2 * 2, both.begin() + step % 2 * 2 + 2);
      } else {
        right = load_ring_matrices(*product.operands.right, row, k, 2 * count);
        round_words(product, right);
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
