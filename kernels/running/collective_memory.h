// Memory of intermediate results that collectives are faster on. Ranks make it together, and place
// what they exchange alike: they compare first what decides that. distributed/ is behind it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "kernels/running/program.h"

namespace tenon::kernels {

class CollectiveMemory {
 public:
  virtual ~CollectiveMemory() = default;
  // Both are called by all ranks, in the same order, outside of captures.
  virtual bool agree(const std::string& layout) = 0;     // else plain memory is taken on all ranks
  virtual std::shared_ptr<void> make(size_t bytes) = 0;  // null: on all ranks
};

// What decides where collectives find their buffers. Ranks with the same text place them alike
// wherever their sizes are the same.
std::string arena_layout(const Program& program);
bool has_collectives(const Program& program);

}  // namespace tenon::kernels
