// One kernel being interpreted: the values of the task that runs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "codegen/interpret.h"
#include "codegen/interpret/rings.h"
#include "codegen/interpret/tile_data.h"
#include "codegen/pdl.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

class Interpreter {
 public:
  Interpreter(const Kernel& kernel, std::span<void* const> buffers,
              std::span<const int64_t> indices, LaunchMemory* memory);
  void run_task(int64_t task);

 private:
  // One of them, by the kind of the value's type.
  struct Value {
    int64_t index = 0;
    std::byte* buffer = nullptr;
    TileData tile;
  };

  const Type& type(ValueId id) const { return kernel_.types[id]; }
  int64_t index(ValueId id) const { return values_[id].index; }
  const TileData& tile(ValueId id) const { return values_[id].tile; }
  bool truth(ValueId id) const { return *tile(id).data<bool>(); }
  TileData& fresh(ValueId id);  // storage for a result

  // interpret.cc
  void require_no_race() const;
  void run(const Region& region);
  void run(const Operation& op);
  void run_checked(const Operation& op);
  void tile_operation(const Operation& op);
  void index_operation(const Operation& op);
  void control_operation(const Operation& op);
  int64_t computed_index(const Operation& op) const;
  void for_loop(const Operation& op);
  void branch(const Operation& op);
  void pipeline(const Operation& op);
  // All stages were empty, and are on their way now.
  void end_of_first_copies() { copies_wait_ = pdl_.wait == Pdl::Wait::kFirst; }
  std::vector<Ring*> rings_of(const Operation& pipeline);
  // The values of `from` become those of `to`, all at once.
  void assign(std::span<const ValueId> to, std::span<const ValueId> from);

  // memory.cc
  void memory_operation(const Operation& op);
  void ring_operation(const Operation& op);
  void alloc(const Operation& op);
  void load(const Operation& op);
  void store(const Operation& op);
  void gather(const Operation& op);
  void scatter(const Operation& op);
  void tile_dot(const Operation& op);
  void bulk_load(const Operation& op);
  void tma_load(const Operation& op);
  void read(const Operation& op);
  std::vector<int64_t> indices_of(ValueId id) const;
  bool touches_before_wait(const Operation& op, ValueId buffer);
  // `from` or, where launches overlap, what is seen there.
  const std::byte* seen(const Operation& op, ValueId buffer, const std::byte* from, size_t bytes);
  void written(const Operation& op, ValueId buffer, std::byte* to, size_t bytes);

  const Kernel& kernel_;
  int64_t task_ = 0;
  std::vector<Value> values_;
  std::map<ValueId, std::vector<uint64_t>> scratch_;  // by the value that alloc made
  std::map<ValueId, Ring> rings_;
  LaunchMemory* const memory_;  // null: launches do not overlap
  Pdl pdl_;                     // where they do
  bool has_waited_ = false;     // the task, by griddepcontrol.wait
  bool copies_wait_ = false;    // and so have its copies
};

}  // namespace tenon::codegen
