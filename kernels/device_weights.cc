#include "kernels/device_weights.h"

#include <set>

#include <fmt/format.h>

#include "kernels/device/uploader.h"

namespace tenon::kernels {
namespace {

constexpr size_t kAlignment = 256;
// Smaller constants share one allocation: the driver's have a granularity.
constexpr size_t kOwnAllocation = size_t{1} << 20;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t bytes_of(const Slot& slot) { return static_cast<size_t>(slot.bytes.value()); }

std::set<size_t> checked_slots(const Program& program) {
  std::set<size_t> slots;
  for (const CompiledLaunch& launch : program.launches) {
    for (const CheckedIndices& checked : launch.checks) slots.insert(checked.slot);
  }
  return slots;
}

}  // namespace

DeviceWeights::DeviceWeights(const std::shared_ptr<device::Device>& device, Program& program)
    : addresses_(program.slots.size(), 0) {
  size_t shared_bytes = 0;
  for (const Slot& slot : program.slots) {
    if (slot.kind != Slot::Kind::kConstant || bytes_of(slot) >= kOwnAllocation) continue;
    shared_bytes += aligned(bytes_of(slot));
  }
  device::Address next = 0;
  if (shared_bytes > 0) {
    buffers_.emplace_back(device, shared_bytes, "the small constants of a partition");
    next = buffers_.back().address();
  }
  const std::set<size_t> checked = checked_slots(program);
  const auto uploader = device::Uploader::make(device);
  for (size_t i = 0; i < program.slots.size(); ++i) {
    Slot& slot = program.slots[i];
    if (slot.kind != Slot::Kind::kConstant) continue;
    if (bytes_of(slot) >= kOwnAllocation) {
      buffers_.emplace_back(device, bytes_of(slot), fmt::format("weight '{}'", slot.name));
      addresses_[i] = buffers_.back().address();
    } else {
      addresses_[i] = next;
      next += aligned(bytes_of(slot));
    }
    if (slot.data == nullptr && checked.contains(i)) {
      slot.data = pack_whole(bytes_of(slot), slot.pack, slot.unit);
    }
    if (slot.data == nullptr) {
      uploader->upload(addresses_[i], bytes_of(slot), slot.pack, slot.unit);
    } else {
      uploader->upload(addresses_[i], slot.data.get(), bytes_of(slot));
    }
    slot.pack = {};  // the graph that it reads may go
    if (!checked.contains(i)) slot.data.reset();
  }
  uploader->finish();
}

}  // namespace tenon::kernels
