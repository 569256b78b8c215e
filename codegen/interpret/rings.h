// The rings of a task: who may fill and read which stage when. Stricter than a GPU, where the wrong
// stage is a race that may go well: here it is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "codegen/tile/ir.h"

namespace tenon::codegen {

class Ring {
 public:
  Ring(const Type& stage_type, int64_t stages);

  int64_t stages() const { return static_cast<int64_t>(stages_.size()); }
  int64_t position() const { return position_; }  // steps that pipelines took with this ring
  int64_t stage_elements() const { return elements_; }
  int64_t element_bytes() const { return element_bytes_; }

  // A pipeline says which half of which step runs. Ending a step's consume half releases its stage.
  void begin_produce(int64_t step) { producing_ = step; }
  void end_produce() { producing_ = kNoStep; }
  void begin_consume(int64_t step) { consuming_ = step; }
  void end_consume();
  void advance(int64_t steps) { position_ += steps; }

  // The bytes of a stage. Throw InternalError where the step that runs has no right to them.
  std::byte* fill(int64_t stage);
  const std::byte* read(int64_t stage) const;

 private:
  static constexpr int64_t kNoStep = -1;
  struct Stage {
    std::vector<std::byte> bytes;
    int64_t step = kNoStep;  // that it was filled for
  };
  void require_stage(int64_t stage) const;

  DType dtype_;
  int64_t elements_, element_bytes_;
  std::vector<Stage> stages_;
  int64_t position_ = 0, producing_ = kNoStep, consuming_ = kNoStep;
};

// Bytes that no kernel should ever see: NaN, or an integer that shows.
void poison(DType dtype, std::byte* bytes, size_t count);

}  // namespace tenon::codegen
