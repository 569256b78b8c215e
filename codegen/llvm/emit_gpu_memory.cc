// Loads and stores. Neighbouring elements of a thread move as vectors where the addresses allow it,
// which is asked once per access for all threads. Only what an extent allows is touched.
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "codegen/llvm/emit_gpu.h"
#include "codegen/llvm/ptx.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

constexpr int kVectorBytes = 16;

int bytes_of(DType dtype) { return (bit_width(dtype) + 7) / 8; }

llvm::Align alignment(int bytes) { return llvm::Align(static_cast<uint64_t>(bytes)); }

bool is_shared(llvm::Value* pointer) { return pointer->getType()->getPointerAddressSpace() == 3; }

}  // namespace

void GpuEmitter::memory_operation(const Operation& op) {
  if (folded_.contains(&op)) return;
  if (op.op != Op::kAlloc && op.op != Op::kPrefetch) wait_before(op);
  switch (op.op) {
    case Op::kLoad:
      order_memory(op);
      values_[op.results[0]] = load(op);
      return;
    case Op::kStore:
      order_memory(op);
      store(op);
      if (filled_scratch_.contains(op.operands[0])) emit_barrier();
      return;
    case Op::kGather:
      return gather(op);
    case Op::kScatter:
      return scatter(op);
    case Op::kArrive:
      return arrive(op);
    default:  // kAlloc has its place already, kPrefetch is a hint
      return;
  }
}

// What all threads stored is out before one of them counts; what others stored before they counted
// is seen by all threads after.
void GpuEmitter::arrive(const Operation& op) {
  if (arrival_slot_ < 0) arrival_slot_ = shared_.keep(4);
  auto fence = [&] { instruct(ptx::Instruction::kFenceDevice, {}); };
  emit_barrier();
  when(ir_.CreateICmpEQ(thread_, number(0)), [&] {
    fence();
    Value* counter =
        ir_.CreateGEP(ir_.getInt32Ty(), single(op.operands[0]), single(op.operands[1]));
    Value* before = ir_.CreateAtomicRMW(llvm::AtomicRMWInst::Add, counter, number(1),
                                        llvm::MaybeAlign(4), llvm::AtomicOrdering::Monotonic);
    fence();
    write_shared(DType::kI32, arrival_slot_, number(0), before);
  });
  emit_barrier();
  Value* before = read_shared(DType::kI32, arrival_slot_, number(0));
  values_[op.results[0]] = {ir_.CreateZExt(before, ir_.getInt64Ty())};
}

// A barrier where another thread may have written what is read here, or may still read what is
// written. Different parameters are different memory, except that a scatter's buffer may also come
// in as one of the same type to be read.
void GpuEmitter::order_memory(const Operation& op) {
  ValueId buffer = op.operands[0];
  bool write = info(op.op).writes != 0;
  if (filled_scratch_.contains(buffer)) return;
  if (is_shared(single(buffer))) {
    auto* definition = definitions_[buffer];
    int64_t bytes = definition->integer * bytes_of(type(buffer).dtype);
    llvm::APInt offset(64, 0);
    single(buffer)->stripAndAccumulateConstantOffsets(module_.getDataLayout(), offset, true);
    return barrier_before(offset.getSExtValue(), bytes, write);
  }
  bool scattered = std::ranges::count(scattered_, type(buffer).dtype) > 0;
  bool conflicts = write ? read_[buffer] : written_[buffer];
  if (scattered) conflicts = true;
  if (!conflicts) return;
  // Offsets below zero stand for global memory.
  int64_t place = scattered ? -1 : -2 - int64_t{buffer};
  barrier_before(place, 1, write);
}

// Scratch that products or steps of pipelines read, and that is filled before any of them stands: a
// barrier behind each store, and none in the loops that read.
void GpuEmitter::find_filled_scratch() {
  std::map<ValueId, std::pair<size_t, size_t>> times;  // of the last store and the first load
  std::set<ValueId> kept;                              // by whoever reads into registers, once
  size_t now = 0;
  int pipelines = 0;  // around the operation
  std::function<void(const Operation&)> visit = [&](const Operation& op) {
    pipelines += op.op == Op::kPipeline;
    for (const Region& region : op.regions) std::ranges::for_each(region.operations, visit);
    pipelines -= op.op == Op::kPipeline;
    bool reads = op.op == Op::kLoad || op.op == Op::kGather;
    if (!reads && op.op != Op::kStore && op.op != Op::kScatter) return;
    const Operation* scratch = definitions_[op.operands[0]];
    if (!scratch || scratch->op != Op::kAlloc) return;
    auto [entry, fresh] = times.try_emplace(op.operands[0], 0, SIZE_MAX);
    auto& [stored, loaded] = entry->second;
    if (!reads) stored = now;
    if (reads) loaded = std::min(loaded, now);
    bool is_kept = reads && !folded_.contains(&op) && pipelines == 0;
    if (is_kept || op.op == Op::kScatter) kept.insert(op.operands[0]);  // no barrier behind those
  };
  for (const Operation& op : kernel_.body.operations) {
    ++now;
    visit(op);
  }
  for (const auto& [scratch, between] : times) {
    if (between.first < between.second && !kept.contains(scratch)) filled_scratch_.insert(scratch);
  }
}

GpuEmitter::Access GpuEmitter::access(const Operation& op, size_t first_stride, const Type& type) {
  Access out;
  out.dtype = type.dtype;
  size_t rank = type.shape.size();
  Value *buffer = single(op.operands[0]), *offset = single(op.operands[1]);
  out.base =
      is_constant(offset, 0) ? buffer : ir_.CreateGEP(memory_type(out.dtype), buffer, offset);
  auto stride = [&](size_t d) { return single(op.operands[first_stride + d]); };
  auto extent = [&](size_t d, int size) -> Value* {
    ValueId id = op.operands[first_stride + rank + d];
    if (id == kNone) return nullptr;
    Value* low = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, single(id), index_constant(0));
    Value* both = ir_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, low, index_constant(size));
    return ir_.CreateTrunc(both, ir_.getInt32Ty());
  };
  out.row_stride = out.column_stride = index_constant(0);
  if (rank > 0) {
    out.columns = type.shape.back();
    out.column_stride = stride(rank - 1);
    out.column_extent = extent(rank - 1, out.columns);
  }
  if (rank == 2) {
    out.rows = type.shape[0];
    out.row_stride = stride(0);
    out.row_extent = extent(0, out.rows);
  }
  return out;
}

// Registers that hold neighbours of one row.
int GpuEmitter::group_width(const Layout& layout, const Type& type, const Access& access) {
  auto* stride = llvm::dyn_cast<llvm::ConstantInt>(access.column_stride);
  if (stride && !stride->isOne()) return 1;
  switch (layout.kind) {
    case Layout::Kind::kDealt:
      return access.columns % layout.run == 0 ? layout.run : 1;
    case Layout::Kind::kMma:
      return access.columns % 2 == 0 ? 2 : 1;
    case Layout::Kind::kColumns:
      return type.shape.back() % 2 == 0 ? 2 : 1;
    case Layout::Kind::kBits:
      return layout.neighbours();
    default:
      return 1;
  }
}

llvm::Value* GpuEmitter::groups_apply(const Access& access, int width) {
  int bytes = bytes_of(access.dtype);
  auto mask = static_cast<uint64_t>(std::min(kVectorBytes, width * bytes) - 1);
  Value* bits = ir_.CreatePtrToInt(access.base, ir_.getInt64Ty());
  if (access.rows > 1) {
    bits = ir_.CreateOr(bits, ir_.CreateMul(access.row_stride, index_constant(bytes)));
  }
  Value* zero = index_constant(0);
  Value* apply = ir_.CreateICmpEQ(ir_.CreateAnd(bits, ir_.getInt64(mask)), zero);
  if (!is_constant(access.column_stride, 1)) {
    apply = ir_.CreateAnd(apply, ir_.CreateICmpEQ(access.column_stride, index_constant(1)));
  }
  if (access.column_extent) {
    Value* rest = ir_.CreateAnd(access.column_extent, number(width - 1));
    apply = ir_.CreateAnd(apply, ir_.CreateICmpEQ(rest, number(0)));
  }
  return apply;
}

// Null: always.
llvm::Value* GpuEmitter::inside(const Access& access, const Place& place) {
  Value* out = place.live;
  if (access.row_extent) out = both(out, ir_.CreateICmpULT(place.row, access.row_extent));
  if (access.column_extent) {
    out = both(out, ir_.CreateICmpULT(place.column, access.column_extent));
  }
  return out;
}

llvm::Value* GpuEmitter::offset_of(const Access& access, const Place& place) {
  auto scaled = [&](Value* position, Value* stride) -> Value* {
    Value* wide = ir_.CreateZExt(position, ir_.getInt64Ty());
    return is_constant(stride, 1) ? wide : ir_.CreateNSWMul(wide, stride);
  };
  Value* column = scaled(place.column, access.column_stride);
  return access.rows == 1 ? column : ir_.CreateNSWAdd(scaled(place.row, access.row_stride), column);
}

// Whether nothing, and whether everything, lies inside of the extents. Null: there are none.
std::pair<llvm::Value*, llvm::Value*> GpuEmitter::empty_and_whole(const Access& access) {
  Value *empty = nullptr, *whole = nullptr;
  for (auto [extent, size] : {std::pair{access.row_extent, access.rows},
                              std::pair{access.column_extent, access.columns}}) {
    if (!extent) continue;
    Value* none = ir_.CreateICmpEQ(extent, number(0));
    empty = empty ? ir_.CreateOr(empty, none) : none;
    whole = both(whole, ir_.CreateICmpEQ(extent, number(size)));
  }
  return {empty, whole};
}

GpuEmitter::Tile GpuEmitter::load(const Operation& op) {
  const Type& result = type(op.results[0]);
  const Layout& layout = layouts_[op.results[0]];
  Access from = access(op, 2, result);
  if (result.shape.empty()) return load_vector(from.dtype, from.base, 1);
  Value* fill = constant_element(from.dtype, op.number, static_cast<int64_t>(op.number));
  int width = group_width(layout, result, from);

  auto& context = module_.getContext();
  std::vector<std::pair<Tile, llvm::BasicBlock*>> ways;
  auto* after = llvm::BasicBlock::Create(context, "loaded", function_);
  auto leave = [&](Tile lanes) {
    ways.emplace_back(std::move(lanes), ir_.GetInsertBlock());
    ir_.CreateBr(after);
  };
  auto way = [&](Value* condition, const char* name, const std::function<Tile()>& lanes) {
    auto* taken = llvm::BasicBlock::Create(context, name, function_);
    auto* other = llvm::BasicBlock::Create(context, "else", function_);
    ir_.CreateCondBr(condition, taken, other);
    ir_.SetInsertPoint(taken);
    leave(lanes());
    ir_.SetInsertPoint(other);
  };
  auto groups = static_cast<size_t>(layout.registers() / width);
  Tile fill_group = pack_lanes(from.dtype, Tile(static_cast<size_t>(width), fill));
  auto [empty, whole] = empty_and_whole(from);
  if (width > 1) {
    Value* vectors = groups_apply(from, width);
    if (whole) {  // nothing is done to what arrives, so that nobody has to wait for it here
      Access unbounded = from;
      unbounded.row_extent = unbounded.column_extent = nullptr;
      way(ir_.CreateAnd(vectors, whole), "whole",
          [&] { return load_groups(unbounded, layout, result, width, fill_group); });
    }
    // Past this, element (0, 0) may be read in place of those outside.
    if (empty) way(empty, "nothing", [&] { return repeated(fill_group, groups); });
    way(vectors, "vectors", [&] { return load_groups(from, layout, result, width, fill_group); });
  } else if (empty) {
    way(empty, "nothing", [&] { return repeated(fill_group, groups); });
  }
  Tile single = load_groups(from, layout, result, 1, {to_memory(from.dtype, fill)});
  leave(in_groups(from.dtype, single, width));
  ir_.SetInsertPoint(after);
  Tile lanes, out;
  for (size_t lane = 0; lane < ways[0].first.size(); ++lane) {
    llvm::PHINode* phi =
        ir_.CreatePHI(fill_group[0]->getType(), static_cast<unsigned>(ways.size()));
    for (auto& [way_lanes, block] : ways) phi->addIncoming(way_lanes[lane], block);
    lanes.push_back(phi);
  }
  for (size_t first = 0; first < lanes.size(); first += fill_group.size()) {
    Tile group(lanes.begin() + first, lanes.begin() + first + fill_group.size());
    for (Value* element : unpack_lanes(from.dtype, group, width)) out.push_back(element);
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::repeated(const Tile& group, size_t count) {
  Tile out;
  for (size_t i = 0; i < count; ++i) out.insert(out.end(), group.begin(), group.end());
  return out;
}

// Single elements as they lie in memory, packed into the lanes of groups.
GpuEmitter::Tile GpuEmitter::in_groups(DType dtype, const Tile& single, int width) {
  if (width == 1) return single;
  Tile out;
  for (size_t first = 0; first < single.size(); first += static_cast<size_t>(width)) {
    Tile group;
    for (size_t i = first; i < first + static_cast<size_t>(width); ++i) {
      group.push_back(from_memory(dtype, single[i]));
    }
    for (Value* lane : pack_lanes(dtype, group)) out.push_back(lane);
  }
  return out;
}

// Lanes of vectors, or elements as they lie in memory where width is 1.
GpuEmitter::Tile GpuEmitter::load_groups(const Access& access, const Layout& layout,
                                         const Type& type, int width, const Tile& fill) {
  Tile out;
  std::vector<Value*> valid;
  for (int r = 0; r < layout.registers(); r += width) {
    Place at = place(layout, r, type);
    Value* offset = offset_of(access, at);
    valid.push_back(inside(access, at));
    if (valid.back()) offset = ir_.CreateSelect(valid.back(), offset, index_constant(0));
    Value* pointer = ir_.CreateGEP(memory_type(access.dtype), access.base, offset);
    for (Value* lane : load_lanes(access.dtype, pointer, width)) out.push_back(lane);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    Value* keep = valid[i / fill.size()];
    if (keep) out[i] = ir_.CreateSelect(keep, out[i], fill[i % fill.size()]);
  }
  return out;
}

void GpuEmitter::store(const Operation& op) {
  const Type& value = type(op.operands[2]);
  const Layout& layout = layouts_[op.operands[2]];
  const Tile& in = tile(op.operands[2]);
  Access to = access(op, 3, value);
  if (is_constant(to.column_stride, 1) && !is_shared(to.base) && is_turned(op.operands[2])) {
    return store_turned(to, op.operands[2]);
  }
  auto& context = module_.getContext();
  auto* after = llvm::BasicBlock::Create(context, "stored", function_);
  auto way = [&](Value* condition, const char* name, const std::function<void()>& emit) {
    auto* taken = llvm::BasicBlock::Create(context, name, function_);
    auto* other = llvm::BasicBlock::Create(context, "else", function_);
    ir_.CreateCondBr(condition, taken, other);
    ir_.SetInsertPoint(taken);
    emit();
    ir_.CreateBr(after);
    ir_.SetInsertPoint(other);
  };
  const auto quads = quad_layout(layout, value);
  if (quads && is_constant(to.column_stride, 1) && !is_shared(to.base)) {
    way(groups_apply(to, kVectorBytes / bytes_of(to.dtype)), "quads",
        [&] { store_in_quads(to, layout, *quads, value, in); });
  }
  int width = value.shape.empty() ? 1 : group_width(layout, value, to);
  if (width > 1) {
    way(groups_apply(to, width), "vectors", [&] { store_groups(to, layout, value, width, in); });
  }
  store_groups(to, layout, value, 1, in);
  ir_.CreateBr(after);
  ir_.SetInsertPoint(after);
}

void GpuEmitter::store_groups(const Access& access, const Layout& layout, const Type& type,
                              int width, const Tile& tile) {
  Value* first = owner(layout);
  for (int r = 0; r < layout.registers(); r += width) {
    Place at = place(layout, r, type);
    when(both(first, inside(access, at)), [&] {
      Value* pointer = ir_.CreateGEP(memory_type(access.dtype), access.base, offset_of(access, at));
      store_vector(access.dtype, pointer, {tile.data() + r, static_cast<size_t>(width)});
    });
  }
}

// A group as vectors of at most 16 bytes. Their lanes are words of 32 bits where elements are
// narrower, since registers are.
struct GpuEmitter::VectorShape {
  int per_vector, in_lane, lanes, bytes;

  VectorShape(DType dtype, int width) {
    bytes = bytes_of(dtype);
    per_vector = std::min(width, kVectorBytes / bytes);
    in_lane = bytes < 4 ? std::min(per_vector, 4 / bytes) : 1;
    lanes = per_vector / in_lane;
  }
};

GpuEmitter::Tile GpuEmitter::load_lanes(DType dtype, Value* pointer, int width) {
  VectorShape shape(dtype, width);
  llvm::Type* element = memory_type(dtype);
  llvm::Type* lane = shape.in_lane == 1 ? element : ir_.getIntNTy(8 * shape.bytes * shape.in_lane);
  llvm::Type* vector = lane;
  if (shape.lanes > 1) vector = llvm::FixedVectorType::get(lane, shape.lanes);
  Tile out;
  for (int first = 0; first < width; first += shape.per_vector) {
    Value* part = ir_.CreateConstGEP1_64(element, pointer, static_cast<uint64_t>(first));
    Value* loaded = ir_.CreateAlignedLoad(vector, part, alignment(shape.per_vector * shape.bytes));
    for (int i = 0; i < shape.lanes; ++i) {
      out.push_back(shape.lanes == 1 ? loaded
                                     : ir_.CreateExtractElement(loaded, static_cast<uint64_t>(i)));
    }
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::unpack_lanes(DType dtype, const Tile& lanes, int width) {
  VectorShape shape(dtype, width);
  Tile out;
  for (int i = 0; i < width; ++i) {
    Value* value = lanes[static_cast<size_t>(i / shape.in_lane)];
    if (shape.in_lane > 1) {
      value = ir_.CreateLShr(value, static_cast<uint64_t>(8 * shape.bytes * (i % shape.in_lane)));
      value = ir_.CreateTrunc(value, memory_type(dtype));
    }
    out.push_back(from_memory(dtype, value));
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::pack_lanes(DType dtype, std::span<Value* const> elements) {
  VectorShape shape(dtype, static_cast<int>(elements.size()));
  Tile out;
  for (size_t i = 0; i < elements.size(); i += static_cast<size_t>(shape.in_lane)) {
    Value* lane = nullptr;
    for (int k = 0; k < shape.in_lane; ++k) {
      Value* value = to_memory(dtype, elements[i + static_cast<size_t>(k)]);
      if (shape.in_lane > 1) {
        value = ir_.CreateZExt(value, ir_.getIntNTy(8 * shape.bytes * shape.in_lane));
        value = ir_.CreateShl(value, static_cast<uint64_t>(8 * shape.bytes * k));
      }
      lane = lane ? ir_.CreateOr(lane, value) : value;
    }
    out.push_back(lane);
  }
  return out;
}

GpuEmitter::Tile GpuEmitter::load_vector(DType dtype, Value* pointer, int width) {
  return unpack_lanes(dtype, load_lanes(dtype, pointer, width), width);
}

void GpuEmitter::store_vector(DType dtype, Value* pointer, std::span<Value* const> elements) {
  int width = static_cast<int>(elements.size());
  VectorShape shape(dtype, width);
  Tile lanes = pack_lanes(dtype, elements);
  for (int first = 0; first < width; first += shape.per_vector) {
    Value* part = ir_.CreateConstGEP1_64(memory_type(dtype), pointer, static_cast<uint64_t>(first));
    auto lane = static_cast<size_t>(first / shape.in_lane);
    Value* whole = lanes[lane];
    if (shape.lanes > 1) {
      whole = llvm::PoisonValue::get(llvm::FixedVectorType::get(whole->getType(), shape.lanes));
      for (size_t i = 0; i < static_cast<size_t>(shape.lanes); ++i) {
        whole = ir_.CreateInsertElement(whole, lanes[lane + i], static_cast<uint64_t>(i));
      }
    }
    ir_.CreateAlignedStore(whole, part, alignment(shape.per_vector * shape.bytes));
  }
}

void GpuEmitter::gather(const Operation& op) {
  const Type &indices = type(op.operands[2]), &result = type(op.results[0]);
  const Layout& layout = layouts_[op.results[0]];
  DType dtype = result.dtype;
  Value* base = ir_.CreateGEP(memory_type(dtype), single(op.operands[0]), single(op.operands[1]));
  Value* fill = constant_element(dtype, op.number, static_cast<int64_t>(op.number));
  Tile at = in_layout(op.operands[2], layout), mask;
  if (op.operands[3] != kNone) mask = in_layout(op.operands[3], layout);
  order_memory(op);
  Tile out;
  for (int r = 0; r < layout.registers(); ++r) {
    auto i = static_cast<size_t>(r);
    Value* wanted = both(place(layout, r, result).live, mask.empty() ? nullptr : mask[i]);
    Value* offset = cast(indices.dtype, DType::kI64, at[i]);
    llvm::BasicBlock* before = ir_.GetInsertBlock();
    Value* loaded = nullptr;
    llvm::BasicBlock* inside = nullptr;
    when(wanted, [&] {
      loaded = load_vector(dtype, ir_.CreateGEP(memory_type(dtype), base, offset), 1)[0];
      inside = ir_.GetInsertBlock();
    });
    if (wanted) {
      llvm::PHINode* phi = ir_.CreatePHI(loaded->getType(), 2);
      phi->addIncoming(fill, before);
      phi->addIncoming(loaded, inside);
      loaded = phi;
    }
    out.push_back(loaded);
  }
  values_[op.results[0]] = std::move(out);
}

void GpuEmitter::scatter(const Operation& op) {
  const Type &indices = type(op.operands[2]), &value = type(op.operands[3]);
  const Layout& layout = layouts_[op.operands[3]];
  DType dtype = value.dtype;
  Value* base = ir_.CreateGEP(memory_type(dtype), single(op.operands[0]), single(op.operands[1]));
  Tile at = in_layout(op.operands[2], layout), mask;
  if (op.operands[4] != kNone) mask = in_layout(op.operands[4], layout);
  order_memory(op);
  const Tile& in = tile(op.operands[3]);
  Value* first = owner(layout);
  for (int r = 0; r < layout.registers(); ++r) {
    auto i = static_cast<size_t>(r);
    Value* wanted =
        both(first, both(place(layout, r, value).live, mask.empty() ? nullptr : mask[i]));
    when(wanted, [&] {
      Value* offset = cast(indices.dtype, DType::kI64, at[i]);
      store_vector(dtype, ir_.CreateGEP(memory_type(dtype), base, offset), {&in[i], 1});
    });
  }
}

}  // namespace tenon::codegen
