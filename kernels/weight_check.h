// Whether weights that a program reads from files are those that it was saved with.
#pragma once

#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "base/context_file.h"

namespace tenon::kernels {

// Every chunk once, on all cores, two that are as long at a time.
struct WeightCheck {
  static constexpr size_t kAnySlot = std::numeric_limits<size_t>::max();

  std::shared_ptr<const void> kept;  // where the chunks lie
  bool release = false;              // pages that were read
  struct Chunk {
    size_t slot;  // that is made of it, or kAnySlot
    const CheckedData* source;
    DataSection data;
    size_t number;

    std::span<const std::byte> bytes() const { return data.chunk(number); }
  };
  std::vector<Chunk> chunks = {};

  void add(size_t slot, const CheckedData& source, const DataSection& data);
  // Those of `wanted` slots. Throws UserError that names what is not as it was.
  void operator()(const std::vector<bool>& wanted) const;
  void check_all() const;

 private:
  void check(std::vector<const Chunk*> chunks) const;
};

}  // namespace tenon::kernels
