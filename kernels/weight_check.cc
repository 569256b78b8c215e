#include "kernels/weight_check.h"

#include <algorithm>

#include "base/file_pages.h"
#include "base/thread_pool.h"

namespace tenon::kernels {

void WeightCheck::add(size_t slot, const CheckedData& source, const DataSection& data) {
  for (size_t number = 0; number < data.digests.size(); ++number) {
    chunks.push_back({slot, &source, data, number});
  }
}

void WeightCheck::operator()(const std::vector<bool>& wanted) const {
  std::vector<const Chunk*> left;
  for (const Chunk& chunk : chunks) {
    if (chunk.slot == kAnySlot || wanted[chunk.slot]) left.push_back(&chunk);
  }
  check(std::move(left));
}

void WeightCheck::check_all() const {
  std::vector<const Chunk*> all;
  for (const Chunk& chunk : chunks) all.push_back(&chunk);
  check(std::move(all));
}

void WeightCheck::check(std::vector<const Chunk*> left) const {
  std::ranges::stable_sort(left, std::ranges::greater{},
                           [](const Chunk* chunk) { return chunk->bytes().size(); });
  parallel_for_each(static_cast<int64_t>((left.size() + 1) / 2), [&](int64_t i) {
    const Chunk& first = *left[2 * static_cast<size_t>(i)];
    const size_t next = 2 * static_cast<size_t>(i) + 1;
    if (next == left.size()) {
      first.source->verify(first.data, first.number);
    } else {
      const Chunk& second = *left[next];
      CheckedData::verify_pair({*first.source, first.data, first.number},
                               {*second.source, second.data, second.number});
      if (release) release_file_pages(second.bytes());
    }
    if (release) release_file_pages(first.bytes());
  });
}

}  // namespace tenon::kernels
