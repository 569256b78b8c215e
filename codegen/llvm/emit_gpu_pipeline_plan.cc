// What pipelines need before anything is emitted: rings in shared memory, TMA descriptors,
// registers and CTAs per SM, and what the copying thread must know.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "codegen/arch_spec.h"
#include "codegen/estimate.h"
#include "codegen/llvm/emit_gpu.h"
#include "codegen/tile/op_info.h"

namespace tenon::codegen {

namespace {

constexpr int64_t kBoxAlignment = 1024;  // of swizzled stages
constexpr int kSwizzledBytes = 128;      // whose units change places at most

int64_t bytes_of(const Type& type) { return type.elements() * ((bit_width(type.dtype) + 7) / 8); }

bool contains_pipeline(const Operation& op) {
  if (op.op == Op::kPipeline) return true;
  return std::ranges::any_of(op.regions, [](const Region& region) {
    return std::ranges::any_of(region.operations, contains_pipeline);
  });
}

}  // namespace

void GpuEmitter::plan_ring(const Operation& op) {
  const Type& type = kernel_.types[op.results[0]];
  Ring ring;
  ring.stages = static_cast<int>(op.integer);
  ring.stage_bytes = bytes_of(type);
  rings_[op.results[0]] = ring;
}

// Sizes of a TMA descriptor are read by the host, which knows parameters and constants only.
void GpuEmitter::plan_tma_load(const Operation& fetch) {
  const Type& stage = kernel_.types[fetch.operands[0]];
  auto size = [&](size_t operand) -> TmaDescriptor::Size {
    ValueId id = fetch.operands[operand];
    if (static_cast<size_t>(id) < kernel_.parameters.size()) return {id, 0};
    const Operation* made = definitions_[id];
    if (made && made->op == Op::kIndexConstant) return {-1, made->integer};
    throw UserError(
        fmt::format("kernel @{}: sizes of a matrix that TMA loads read must be "
                    "parameters or constants",
                    kernel_.name));
  };
  auto groups = static_cast<int>(fetch.integer);
  // Products read elements of 16 bits or tf32, in rows whose units have changed places.
  bool tf32 = rings_of_tf32_.contains(fetch.operands[0]);
  bool swizzled = bit_width(stage.dtype) == 16 || tf32 || meets_in_banks(fetch.operands[0]);
  TmaDescriptor descriptor{fetch.operands[2], stage.dtype,
                           size(5),           size(6),
                           size(7),           stage.shape[0] / std::max(1, groups),
                           stage.shape[1],    groups,
                           swizzled,          tf32};
  int row_bytes = stage.shape[1] * bit_width(stage.dtype) / 8;
  bool wide = row_bytes == 2 * kSwizzledBytes && groups == 0;
  bool fits = swizzled ? row_bytes == 128 || row_bytes == 64 || row_bytes == 32 || wide
                       : row_bytes % 16 == 0 && stage.shape[1] <= 256;
  if (!fits || stage.shape[0] > 256) {
    throw UserError(fmt::format(
        "kernel @{}: a TMA box has up to 256 rows of 32, 64, 128 or 256 bytes (wider than "
        "16 bits: up to 256 elements), not {} of {}",
        kernel_.name, stage.shape[0], row_bytes));
  }
  auto same = [&](const TmaDescriptor& other) {
    auto equal = [](const TmaDescriptor::Size& a, const TmaDescriptor::Size& b) {
      return a.parameter == b.parameter && a.constant == b.constant;
    };
    return other.buffer == descriptor.buffer && equal(other.rows, descriptor.rows) &&
           equal(other.columns, descriptor.columns) && equal(other.stride, descriptor.stride) &&
           other.box_rows == descriptor.box_rows && other.box_columns == descriptor.box_columns &&
           other.groups == descriptor.groups && other.tf32 == descriptor.tf32;
  };
  auto found = std::ranges::find_if(tma_descriptors_, same);
  descriptor_of_[&fetch] = static_cast<size_t>(found - tma_descriptors_.begin());
  if (found == tma_descriptors_.end()) tma_descriptors_.push_back(descriptor);
  Ring& ring = rings_[fetch.operands[0]];
  ring.box_bytes = row_bytes;
  if (swizzled) ring.row_bytes = std::min(row_bytes, kSwizzledBytes);
}

// Whether lanes of a warp read the same place of several rows at once, which units that stay where
// they are would bring from the same banks.
bool GpuEmitter::meets_in_banks(ValueId ring) const {
  const std::vector<int>& stage = kernel_.types[ring].shape;
  int row_bytes = stage.back() * bit_width(kernel_.types[ring].dtype) / 8;
  if (stage.size() != 2 || (row_bytes != 128 && row_bytes != 64 && row_bytes != 32)) return false;
  return std::ranges::any_of(users_[ring], [&](const auto& user) {
    if (user.first->op != Op::kRead || kernel_.types[user.first->results[0]].shape != stage) {
      return false;
    }
    const Layout& layout = layouts_[user.first->results[0]];
    if (!layout.is_bits()) return false;
    return std::ranges::count_if(layout.thread_bits.begin(), layout.thread_bits.begin() + 5,
                                 [&](int bit) { return bit >= 0 && 1 << bit >= stage[1]; }) >= 2;
  });
}

void GpuEmitter::plan_pipeline(const Operation& op) {
  Steps steps;
  steps.stages = static_cast<int>(op.integer);
  if (steps.stages < 2) {  // one is given back only after the next one has been waited for
    throw UserError(fmt::format("kernel @{}: a pipeline needs two stages", kernel_.name));
  }
  for (const Operation& fetch : op.regions[0].operations) {
    if (fetch.op != Op::kTmaLoad && fetch.op != Op::kBulkLoad) continue;
    if (static_cast<size_t>(fetch.operands[2]) >= kernel_.parameters.size()) {
      throw UserError(
          fmt::format("kernel @{}: pipelines fetch from parameters only", kernel_.name));
    }
    if (fetch.op == Op::kTmaLoad) plan_tma_load(fetch);
    const Ring& ring = rings_[fetch.operands[0]];
    if (ring.stages != steps.stages) {
      throw UserError(fmt::format("kernel @{}: a pipeline of {} stages fetches into a ring of {}",
                                  kernel_.name, steps.stages, ring.stages));
    }
    steps.rings.push_back(fetch.operands[0]);
    steps.bytes += ring.stage_bytes;
  }
  std::ranges::sort(steps.rings);
  if (std::ranges::adjacent_find(steps.rings) != steps.rings.end() || steps.rings.empty()) {
    throw UserError(
        fmt::format("kernel @{}: a step of a pipeline fetches into each ring once, and "
                    "into one at least",
                    kernel_.name));
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    if (steps_[i].rings == steps.rings) {
      steps_of_[&op] = i;
      return;
    }
    for (ValueId ring : steps.rings) {
      if (std::ranges::count(steps_[i].rings, ring) > 0) {
        throw UserError(
            fmt::format("kernel @{}: pipelines share either all rings or none", kernel_.name));
      }
    }
  }
  steps_of_[&op] = steps_.size();
  steps_.push_back(steps);
}

void GpuEmitter::place_rings() {
  for (bool boxes : {true, false}) {  // the larger alignment first
    for (auto& [id, ring] : rings_) {
      if ((ring.row_bytes > 0) != boxes) continue;
      int64_t alignment = boxes ? kBoxAlignment : 128;
      ring.stage_bytes = (ring.stage_bytes + alignment - 1) / alignment * alignment;
      ring.offset = shared_.keep(ring.stage_bytes * ring.stages);
    }
  }
  for (Steps& steps : steps_) steps.barriers = shared_.keep(16 * steps.stages);
}

// ---- registers

namespace {

// For addresses and the like; what other kernels take at most is in estimate.cc.
constexpr int kAddressesOfFewTokens = 24;

}  // namespace

// Kernels of few tokens are short: CTAs of the next launch should come in by PDL, so registers must
// not keep out what fits by its memory. Others need their registers more.
int GpuEmitter::ctas_per_sm() const {
  constexpr int kEnoughRegisters = 64;
  if (kernel_.ctas_per_sm > 0) return kernel_.ctas_per_sm;
  if (!has_grouped_products_) return 1;
  int64_t by_memory = target_.shared_bytes / std::max<int64_t>(1, shared_.total());
  int live = live_registers(kernel_, layouts_, threads_);
  int needed = live > kEnoughRegisters ? live + kAddressesOfFewTokens : kEnoughRegisters;
  int ctas = 1;
  while (ctas < by_memory &&
         registers_with(arch_spec(target_.arch).sm, ctas + 1, threads()) >= needed)
    ++ctas;
  return ctas;
}

bool GpuEmitter::has_registers_to_spare() const {
  constexpr int kHoisted = 12;
  if (!has_grouped_products_) return false;
  int live = live_registers(kernel_, layouts_, threads_);
  return live + kAddressesOfFewTokens + kHoisted <=
         registers_with(arch_spec(target_.arch).sm, ctas_per_sm(), threads());
}

// Registers are dealt anew where an equal share is too little for what is alive at once.
int GpuEmitter::registers_to_compute() const {
  int live = live_registers(kernel_, layouts_, threads_);
  RegisterShare share = share_registers(arch_spec(target_.arch).sm, live, threads_,
                                        has_async_products_ ? copy_threads() : 0);
  return share.dealt_anew ? share.computing : 0;
}

// What the copying thread must know: all that decides where `produce` reads, and whether it runs.
void GpuEmitter::need(ValueId id) {
  if (id == kNone || needed_[id]) return;
  needed_[id] = true;
  if (auto found = carried_by_.find(id); found != carried_by_.end()) {
    auto [loop, i] = found->second;
    return need(loop->results[i]);
  }
  const Operation* op = definitions_[id];
  if (!op) return;
  // A number that the kernel only reads is the same for whoever reads it.
  auto is_only_read = [&](ValueId buffer) {
    return static_cast<size_t>(buffer) < kernel_.parameters.size() && !written_[buffer];
  };
  if (op->op == Op::kLoad && kernel_.types[id].shape.empty() && is_only_read(op->operands[0])) {
    for (ValueId operand : op->operands) need(operand);
    return;
  }
  switch (op->op) {
    case Op::kLoad:
    case Op::kGather:
    case Op::kArrive:
    case Op::kRead:
    case Op::kPipeline:
      throw UserError(fmt::format(
          "kernel @{}: what a pipeline fetches may depend on single numbers that the kernel only "
          "reads, not on other memory",
          kernel_.name));
    case Op::kFor:
    case Op::kIf:
      for (size_t i = 0; i < op->results.size(); ++i) {
        if (op->results[i] != id) continue;
        if (op->op == Op::kFor) need(op->operands[static_cast<size_t>(info(op->op).operands) + i]);
        for (const Region& region : op->regions) need(region.operations.back().operands[i]);
      }
      for (size_t i = 0; i < static_cast<size_t>(info(op->op).operands); ++i) need(op->operands[i]);
      return;
    default:
      for (ValueId operand : op->operands) need(operand);
  }
}

void GpuEmitter::plan_copies(const Region& region) {
  for (const Operation& op : region.operations) {
    if (!contains_pipeline(op)) continue;
    if (op.op == Op::kPipeline) {
      need(op.operands[0]), need(op.operands[1]);
      for (const Operation& fetch : op.regions[0].operations) {
        for (size_t i = 0; i < fetch.operands.size(); ++i) need(fetch.operands[i]);
      }
      continue;
    }
    for (size_t i = 0; i < static_cast<size_t>(info(op.op).operands); ++i) need(op.operands[i]);
    for (const Region& inner : op.regions) plan_copies(inner);
  }
}

bool GpuEmitter::wanted(const Operation& op) {
  finish_operands(op);
  if (lazy_.contains(&op)) return false;
  if (role_ != Role::kCopies || in_produce_ || contains_pipeline(op)) return true;
  return std::ranges::any_of(op.results, [&](ValueId id) { return needed_[id]; });
}

}  // namespace tenon::codegen
