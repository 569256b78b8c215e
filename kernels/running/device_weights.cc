#include "kernels/running/device_weights.h"

#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/file_pages.h"
#include "kernels/device/uploader.h"

namespace tenon::kernels {
namespace {

constexpr size_t kAlignment = 256;
// Constants share allocations of about this size, and larger ones have their own: the driver rounds
// each up to 2 MiB.
constexpr size_t kBlock = size_t{64} << 20;

// The driver's granularity: smaller weights cost more apart than they save.
constexpr size_t kShared = size_t{2} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t bytes_of(const Slot& slot) { return static_cast<size_t>(slot.bytes.value()); }

struct Block {
  size_t bytes = 0, count = 0;
  std::string first, last;  // names
};
struct Place {
  size_t block = 0, offset = 0;
};

class BlockPlan {
 public:
  // `placed`: addresses of slots that have one already.
  BlockPlan(const std::vector<Slot>& slots, const std::vector<device::Address>& placed)
      : places_(slots.size()) {
    size_t open = kNone;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (slots[i].kind != Slot::Kind::kConstant || placed[i] != 0) continue;
      const size_t bytes = aligned(bytes_of(slots[i]));
      const bool large = bytes > kBlock;
      if (large || open == kNone || blocks_[open].bytes + bytes > kBlock) {
        blocks_.emplace_back();
        if (!large) open = blocks_.size() - 1;
      }
      add(i, large ? blocks_.size() - 1 : open, bytes, slots[i].name);
    }
  }
  const std::vector<Block>& blocks() const { return blocks_; }
  const Place& place(size_t slot) const { return places_[slot]; }

 private:
  void add(size_t slot, size_t number, size_t bytes, const std::string& name) {
    Block& block = blocks_[number];
    places_[slot] = {number, block.bytes};
    if (block.count++ == 0) block.first = name;
    block.last = name;
    block.bytes += bytes;
  }

  static constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<Block> blocks_;
  std::vector<Place> places_;  // per slot
};

std::string purpose(const Block& block) {
  if (block.count == 1) return fmt::format("weight '{}'", block.first);
  return fmt::format("{} weights, '{}' to '{}'", block.count, block.first, block.last);
}

std::set<size_t> checked_slots(const Program& program) {
  std::set<size_t> slots;
  for (const CompiledLaunch& launch : program.launches) {
    for (const CheckedIndices& checked : launch.checks) slots.insert(checked.slot);
  }
  return slots;
}

}  // namespace

std::vector<bool> DeviceWeights::place_shared(const std::shared_ptr<device::Device>& device,
                                              const std::vector<Slot>& slots,
                                              const WeightPool* pool) {
  std::vector<bool> missing(slots.size(), true);
  for (size_t i = 0; i < slots.size() && pool != nullptr; ++i) {
    const Slot& slot = slots[i];
    if (slot.kind != Slot::Kind::kConstant || !slot.content || bytes_of(slot) < kShared) continue;
    std::shared_ptr<device::Buffer> weight = pool->find(*device, *slot.content, bytes_of(slot));
    missing[i] = weight == nullptr;
    if (missing[i]) {
      weight = std::make_shared<device::Buffer>(device, bytes_of(slot),
                                                fmt::format("weight '{}'", slot.name));
    }
    addresses_[i] = weight->address();
    shared_.push_back({*slot.content, std::move(weight)});
  }
  return missing;
}

void DeviceWeights::share(const device::Device& device, WeightPool& pool) const {
  for (const Shared& one : shared_) pool.add(device, one.content, one.weight);
}

DeviceWeights::DeviceWeights(const std::shared_ptr<device::Device>& device, Program& program,
                             const WeightPool* pool)
    : addresses_(program.slots.size(), 0) {
  const std::vector<bool> missing = place_shared(device, program.slots, pool);
  const BlockPlan plan(program.slots, addresses_);
  for (const Block& block : plan.blocks()) {
    buffers_.emplace_back(device, block.bytes, purpose(block));
  }
  const std::set<size_t> checked = checked_slots(program);
  const auto uploader = device::Uploader::make(device);
  for (size_t i = 0; i < program.slots.size(); ++i) {
    Slot& slot = program.slots[i];
    if (slot.kind != Slot::Kind::kConstant) continue;
    if (addresses_[i] == 0) {
      const Place& place = plan.place(i);
      addresses_[i] = buffers_[place.block].address() + place.offset;
    }
    if (slot.data == nullptr && checked.contains(i)) {
      slot.data = pack_whole(bytes_of(slot), slot.pack, slot.unit);
    }
    if (!missing[i]) {
      // Another session's are the same.
    } else if (slot.data == nullptr) {
      uploader->upload(addresses_[i], bytes_of(slot), slot.pack, slot.unit);
    } else {
      uploader->upload(addresses_[i], slot.data.get(), bytes_of(slot));
    }
    slot.pack = {};  // the graph that it reads may go
    for (const auto& source : std::exchange(slot.sources, {})) release_file_pages(source);
    if (!checked.contains(i)) slot.data.reset();
  }
  uploader->finish();
}

}  // namespace tenon::kernels
