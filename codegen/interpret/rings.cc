#include "codegen/interpret/rings.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace tenon::codegen {

void poison(DType dtype, std::byte* bytes, size_t count) {
  std::memset(bytes, is_floating(dtype) ? 0xff : 0xcd, count);
}

Ring::Ring(const Type& slot_type, int64_t slots)
    : dtype_(slot_type.dtype),
      elements_(slot_type.elements()),
      element_bytes_(static_cast<int64_t>(storage_bytes(dtype_, 1))),
      slots_(static_cast<size_t>(slots)) {
  for (Slot& slot : slots_) {
    slot.bytes.resize(static_cast<size_t>(elements_ * element_bytes_));
    poison(dtype_, slot.bytes.data(), slot.bytes.size());
  }
}

void Ring::end_consume() {
  Slot& slot = slots_[static_cast<size_t>(consuming_ % slots())];
  if (slot.step != kNoStep) poison(dtype_, slot.bytes.data(), slot.bytes.size());
  slot.step = consuming_ = kNoStep;
}

void Ring::require_slot(int64_t slot) const {
  if (slot >= 0 && slot < slots()) return;
  throw InternalError(fmt::format("slot {} of a ring of {}", slot, slots()));
}

std::byte* Ring::fill(int64_t slot) {
  require_slot(slot);
  if (producing_ == kNoStep) {
    throw InternalError("a ring is filled by the produce half of a pipeline only");
  }
  if (slot != producing_ % slots()) {
    throw InternalError(fmt::format("step {} has slot {}, and fills slot {}", producing_,
                                    producing_ % slots(), slot));
  }
  Slot& filled = slots_[static_cast<size_t>(slot)];
  if (filled.step != kNoStep) {
    throw InternalError(fmt::format("slot {} is filled twice in step {}", slot, producing_));
  }
  filled.step = producing_;
  return filled.bytes.data();
}

const std::byte* Ring::read(int64_t slot) const {
  require_slot(slot);
  if (consuming_ == kNoStep) {
    throw InternalError("a ring is read by the consume half of a pipeline only");
  }
  const Slot& wanted = slots_[static_cast<size_t>(slot)];
  if (wanted.step == kNoStep) {
    throw InternalError(
        fmt::format("slot {} is read in step {}, and was not fetched", slot, consuming_));
  }
  if (wanted.step != consuming_) {
    throw InternalError(fmt::format("slot {} is read in step {}, and holds what step {} fetched",
                                    slot, consuming_, wanted.step));
  }
  return wanted.bytes.data();
}

}  // namespace tenon::codegen
