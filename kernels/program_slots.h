// Where the values of a graph, and what candidates put aside for their launches, have their bytes:
// the slots of a program while it is built.
#pragma once

#include <string>
#include <vector>

#include "kernels/planning/lowered.h"
#include "kernels/running/program.h"

namespace tenon::kernels {

Dim storage_bytes_of(const ir::Value& value);

// Slots of what a candidate made, by the index that its launches use.
struct SlotsOfLowered {
  std::vector<size_t> packed, scratch, counters;
};

class ProgramSlots {
 public:
  // Inputs and outputs have theirs from the beginning.
  ProgramSlots(const ir::Graph& graph, bool on_gpu, Program& program);

  // The value that owns the bytes, where `id` is a view of it.
  ir::ValueId root(ir::ValueId id) const { return root_.at(id); }
  bool is_placed(ir::ValueId id) const { return slot_of_[root(id)] != kUnplaced; }
  size_t of(ir::ValueId id);
  size_t of(const BufferArgument& argument, const SlotsOfLowered& places);
  SlotsOfLowered place(Lowered& lowered, const std::string& node);
  // The launch that is added next (or what follows the last one) uses the slot.
  void touch(size_t slot);

 private:
  void place_callers();
  size_t add_packed(PackedConstant& constant, const std::string& node);
  void leave_sources(const Lowered& lowered, const SlotsOfLowered& places);
  size_t keep_constant(const ir::Value& value);
  size_t add(Slot slot);
  int next_launch() const { return static_cast<int>(program_.launches.size()); }

  static constexpr size_t kUnplaced = static_cast<size_t>(-1);
  const ir::Graph& graph_;
  const bool on_gpu_;
  Program& program_;
  std::vector<ir::ValueId> root_;
  std::vector<size_t> slot_of_;
};

}  // namespace tenon::kernels
