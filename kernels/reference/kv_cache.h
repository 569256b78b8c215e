// KV caches of attention, [B, H, S, D]: new rows behind past ones, as numbers or as codes.
#pragma once

#include <vector>

#include "kernels/reference/op.h"

namespace tenon::kernels::reference {

// Rows of a cache after this step: past's first past_rows[b] rows, the new ones, zeros.
ReferenceTensor append_rows(const ReferenceTensor* past, const ReferenceTensor& fresh,
                            const std::vector<int64_t>& past_rows, int64_t rows);

// The last `rows` of each row's keys, and zeros where there are fewer.
ReferenceTensor last_rows(const ReferenceTensor& cache, const std::vector<int64_t>& lengths,
                          int64_t rows);

// A cache of codes: what it stores, and how codes and numbers turn into each other. Scales are one,
// or one for each element of each head.
struct Codes {
  DType type = DType::kUndefined;  // i4: code + 8, two in a byte
  const ReferenceTensor* scale = nullptr;

  ReferenceTensor quantized(const ReferenceTensor& x) const;
  ReferenceTensor numbers(const ReferenceTensor& stored, DType dtype) const;

 private:
  bool are_packed() const { return type == DType::kI4; }
  // Of element d of head h, where heads have `width` elements.
  double scale_of(int64_t h, int64_t d, int64_t width) const;
};

// A cache after this step, as it is stored and as it counts.
struct Cache {
  ReferenceTensor present, numbers;
};
Cache append_to_cache(const ReferenceTensor* past, const ReferenceTensor& fresh, const Codes& codes,
                      const std::vector<int64_t>& past_rows, int64_t rows);

}  // namespace tenon::kernels::reference
