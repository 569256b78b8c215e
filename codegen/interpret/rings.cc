#include "codegen/interpret/rings.h"

#include <fmt/format.h>

#include <cstring>

#include "base/error.h"

namespace tenon::codegen {

void poison(DType dtype, std::byte* bytes, size_t count) {
  std::memset(bytes, is_floating(dtype) ? 0xff : 0xcd, count);
}

Ring::Ring(const Type& stage_type, int64_t stages)
    : dtype_(stage_type.dtype),
      elements_(stage_type.elements()),
      element_bytes_(static_cast<int64_t>(storage_bytes(dtype_, 1))),
      stages_(static_cast<size_t>(stages)) {
  for (Stage& stage : stages_) {
    stage.bytes.resize(static_cast<size_t>(elements_ * element_bytes_));
    poison(dtype_, stage.bytes.data(), stage.bytes.size());
  }
}

void Ring::end_consume() {
  Stage& stage = stages_[static_cast<size_t>(consuming_ % stages())];
  if (stage.step != kNoStep) poison(dtype_, stage.bytes.data(), stage.bytes.size());
  stage.step = consuming_ = kNoStep;
}

void Ring::require_stage(int64_t stage) const {
  if (stage >= 0 && stage < stages()) return;
  throw InternalError(fmt::format("stage {} of a ring of {}", stage, stages()));
}

std::byte* Ring::fill(int64_t stage) {
  require_stage(stage);
  if (producing_ == kNoStep) {
    throw InternalError("a ring is filled by the produce half of a pipeline only");
  }
  if (stage != producing_ % stages()) {
    throw InternalError(fmt::format("step {} has stage {}, and fills stage {}", producing_,
                                    producing_ % stages(), stage));
  }
  Stage& filled = stages_[static_cast<size_t>(stage)];
  if (filled.step != kNoStep) {
    throw InternalError(fmt::format("stage {} is filled twice in step {}", stage, producing_));
  }
  filled.step = producing_;
  return filled.bytes.data();
}

const std::byte* Ring::read(int64_t stage) const {
  require_stage(stage);
  if (consuming_ == kNoStep) {
    throw InternalError("a ring is read by the consume half of a pipeline only");
  }
  const Stage& wanted = stages_[static_cast<size_t>(stage)];
  if (wanted.step == kNoStep) {
    throw InternalError(
        fmt::format("stage {} is read in step {}, and was not fetched", stage, consuming_));
  }
  if (wanted.step != consuming_) {
    throw InternalError(fmt::format("stage {} is read in step {}, and holds what step {} fetched",
                                    stage, consuming_, wanted.step));
  }
  return wanted.bytes.data();
}

}  // namespace tenon::codegen
