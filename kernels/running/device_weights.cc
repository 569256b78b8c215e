#include "kernels/running/device_weights.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/file_pages.h"
#include "kernels/running/pack_kernels.h"
#include "kernels/running/weight_upload.h"

namespace tenon::kernels {
namespace {

constexpr size_t kAlignment = 256;
// Constants share allocations of about this size, and larger ones have their own: the driver rounds
// each up to 2 MiB.
constexpr size_t kBlock = size_t{64} << 20;

// The driver's granularity: smaller weights, which cost more apart than they save, are shared with
// all that lies beside them.
constexpr size_t kShared = size_t{2} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t bytes_of(const Slot& slot) { return static_cast<size_t>(slot.bytes.value()); }

struct Block {
  size_t bytes = 0;
  std::vector<size_t> slots, offsets;
};

// Which constants that have no place yet lie side by side.
std::vector<Block> plan_blocks(const std::vector<Slot>& slots,
                               const std::vector<device::Address>& placed) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  std::vector<Block> blocks;
  size_t open = kNone;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind != Slot::Kind::kConstant || placed[i] != 0) continue;
    const size_t bytes = aligned(bytes_of(slots[i]));
    const bool large = bytes > kBlock;
    if (large || open == kNone || blocks[open].bytes + bytes > kBlock) {
      blocks.emplace_back();
      if (!large) open = blocks.size() - 1;
    }
    Block& block = blocks[large ? blocks.size() - 1 : open];
    block.slots.push_back(i);
    block.offsets.push_back(block.bytes);
    block.bytes += bytes;
  }
  return blocks;
}

std::string purpose(const Block& block, const std::vector<Slot>& slots) {
  const std::string& first = slots[block.slots.front()].name;
  if (block.slots.size() == 1) return fmt::format("weight '{}'", first);
  return fmt::format("{} weights, '{}' to '{}'", block.slots.size(), first,
                     slots[block.slots.back()].name);
}

// Nothing where it is not known of every one.
std::optional<Digest> content_of(const Block& block, const std::vector<Slot>& slots) {
  std::string text = "block";
  for (const size_t i : block.slots) {
    if (!slots[i].content) return std::nullopt;
    text += fmt::format(" {} {}", hex(*slots[i].content), bytes_of(slots[i]));
  }
  return sha256(text);
}

std::set<size_t> checked_slots(const Program& program) {
  std::set<size_t> slots;
  for (const CompiledLaunch& launch : program.launches) {
    for (const CheckedIndices& checked : launch.checks) slots.insert(checked.slot);
  }
  return slots;
}

size_t bytes_of(const std::vector<Slot>& slots, const std::vector<bool>& missing) {
  size_t bytes = 0;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].kind == Slot::Kind::kConstant && missing[i]) bytes += bytes_of(slots[i]);
  }
  return bytes;
}

// Sends the constants of a program to their places, and lets go of what the host has of them.
class Sender {
 public:
  // `missing`: what another session has not brought there.
  Sender(const std::shared_ptr<device::Device>& device, Program& program,
         const WeightPacking& packing, const std::vector<device::Address>& addresses,
         const std::vector<bool>& missing)
      : program_(program),
        addresses_(addresses),
        missing_(missing),
        checked_(checked_slots(program)),
        packs_(packing.target != nullptr),
        upload_(device, bytes_of(program.slots, missing)) {
    if (!packs_) return;
    kernels_ = std::async([=, kernels = PackKernels::all_of(program)] {
      return PackKernels(kernels, *device, *packing.target, packing.cache);
    });
  }

  // Pack kernels are compiled while everything else is on its way.
  void send_all() {
    for_each_constant([&](size_t i, Slot&) {
      if (!missing_[i]) leave_out(i);
    });
    reserve_area();
    for_each_constant([&](size_t i, Slot& slot) {
      if (!may_pack(slot)) send_from_host(i);
    });
    for_each_constant([&](size_t i, Slot& slot) {
      if (!may_pack(slot)) return;
      const PackKernels& kernels = loaded();
      kernels.can_make(slot.on_device) ? send_packed(i, kernels) : send_from_host(i);
    });
    upload_.finish();
    let_go();
  }

 private:
  void for_each_constant(const auto& visit) {
    for (size_t i = 0; i < program_.slots.size(); ++i) {
      Slot& slot = program_.slots[i];
      if (slot.kind == Slot::Kind::kConstant && !sent_.contains(i)) visit(i, slot);
    }
  }

  // The host packs where there is no memory for one.
  void reserve_area() {
    size_t staging = 0, total = 0;
    for_each_constant([&](size_t, const Slot& slot) {
      if (!may_pack(slot)) return;
      for (const DevicePacking::Piece& piece : slot.on_device.pieces) {
        staging = std::max(staging, WeightUpload::staged_bytes(piece));
        total += WeightUpload::staged_bytes(piece);
      }
    });
    staging = std::max(staging, std::min(total, WeightUpload::kBatchBytes));
    packs_ = packs_ && upload_.reserve(staging);
  }

  bool may_pack(const Slot& slot) const { return packs_ && !slot.on_device.pieces.empty(); }

  const PackKernels& loaded() {
    if (kernels_.valid()) loaded_ = kernels_.get();
    return loaded_;
  }

  void send_packed(size_t i, const PackKernels& kernels) {
    upload_.add(addresses_[i], program_.slots[i].on_device, kernels);
    note(i);
  }

  void leave_out(size_t i) {
    keep_checked(i);
    sent_.insert(i);
    queued_.push_back(i);
  }

  // Indices that are checked when a shape comes stay on the host.
  void keep_checked(size_t i) {
    Slot& slot = program_.slots[i];
    if (slot.data == nullptr && checked_.contains(i)) {
      slot.data = pack_whole(bytes_of(slot), slot.pack, slot.unit);
    }
  }

  void send_from_host(size_t i) {
    Slot& slot = program_.slots[i];
    keep_checked(i);
    if (slot.data == nullptr) {
      upload_.add(addresses_[i], bytes_of(slot), slot.pack, slot.unit);
    } else {
      const auto copy = [data = static_cast<const std::byte*>(slot.data.get())](
                            int64_t first, std::span<std::byte> out) {
        std::memcpy(out.data(), data + first, out.size());
      };
      upload_.add(addresses_[i], bytes_of(slot), copy, 1);
    }
    note(i);
  }

  void note(size_t i) {
    sent_.insert(i);
    queued_.push_back(i);
    if (!upload_.is_full()) return;
    upload_.send();
    let_go();
  }

  // What was sent has been read, and the graph that it was read from may go.
  void let_go() {
    for (const size_t i : std::exchange(queued_, {})) {
      Slot& slot = program_.slots[i];
      slot.pack = {};
      slot.on_device = {};
      for (const auto& source : std::exchange(slot.sources, {})) release_file_pages(source);
      if (!checked_.contains(i)) slot.data.reset();
    }
  }

  Program& program_;
  const std::vector<device::Address>& addresses_;
  const std::vector<bool>& missing_;
  const std::set<size_t> checked_;
  bool packs_;  // by kernels
  WeightUpload upload_;
  std::set<size_t> sent_;
  std::vector<size_t> queued_;  // sent, and not let go
  PackKernels loaded_;
  std::future<PackKernels> kernels_;
};

}  // namespace

// Returns whether the pool has it.
bool DeviceWeights::hold(const std::shared_ptr<device::Device>& device,
                         const std::optional<Digest>& content, size_t bytes,
                         const std::string& purpose, const WeightPool* pool) {
  std::shared_ptr<device::Buffer> known;
  if (content && pool != nullptr) known = pool->find(*device, *content, bytes);
  const bool is_known = known != nullptr;
  if (!is_known) {
    known =
        std::make_shared<device::Buffer>(pool != nullptr ? pool->make(device, bytes, purpose)
                                                         : device::Buffer(device, bytes, purpose));
  }
  held_.push_back({content, std::move(known)});
  return is_known;
}

std::vector<bool> DeviceWeights::place(const std::shared_ptr<device::Device>& device,
                                       const std::vector<Slot>& slots, const WeightPool* pool) {
  std::vector<bool> missing(slots.size(), true);
  for (size_t i = 0; i < slots.size() && pool != nullptr; ++i) {
    const Slot& slot = slots[i];
    if (slot.kind != Slot::Kind::kConstant || !slot.content || bytes_of(slot) < kShared) continue;
    missing[i] =
        !hold(device, slot.content, bytes_of(slot), fmt::format("weight '{}'", slot.name), pool);
    addresses_[i] = held_.back().buffer->address();
  }
  for (const Block& block : plan_blocks(slots, addresses_)) {
    const bool is_known =
        hold(device, content_of(block, slots), block.bytes, purpose(block, slots), pool);
    for (size_t i = 0; i < block.slots.size(); ++i) {
      missing[block.slots[i]] = !is_known;
      addresses_[block.slots[i]] = held_.back().buffer->address() + block.offsets[i];
    }
  }
  return missing;
}

void DeviceWeights::share(const device::Device& device, WeightPool& pool) const {
  for (const Held& one : held_) {
    if (one.content) pool.add(device, *one.content, one.buffer);
  }
}

DeviceWeights::DeviceWeights(const std::shared_ptr<device::Device>& device, Program& program,
                             const WeightPacking& packing, const WeightPool* pool)
    : addresses_(program.slots.size(), 0) {
  const std::vector<bool> missing = place(device, program.slots, pool);
  auto checked = std::async([&, check = std::exchange(program.check_weights, {})] {
    if (check) check(missing);
  });
  Sender(device, program, packing, addresses_, missing).send_all();
  checked.get();
}

}  // namespace tenon::kernels
