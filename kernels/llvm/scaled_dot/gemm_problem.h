// What the time of a GPU GEMM of packed weights depends on besides its config, in numbers: the log
// of a tuner keeps them, and a fit of the costs estimates again from there.
#pragma once

#include <optional>

#include "codegen/target.h"
#include "kernels/llvm/scaled_dot/fragment_weight.h"
#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

// Few tokens come with the stages of weights, or are read by each CTA when it begins and stay, or
// are computed by it then.
enum class Tokens : uint8_t { kFetched, kResident, kComputed };

// Of launches of other executables, or where nobody has counted.
inline constexpr int kManyLaunches = 1 << 10;

struct GemmProblem {
  int64_t n = 0, k = 0, rows = 0;
  int unit_k = kFragmentDepth;
  int unit_words = 0;                     // of the packed weight
  int row_terms = 1;                      // see FragmentLayout
  bool is_plain = false;                  // the weight is not dequantised
  bool can_accumulate_per_block = false;  // likewise
  // How many launches run at once since none of them waits for the one before, this one among them;
  // 0: it waits.
  int overlapping = 0;
  Tokens tokens = Tokens::kFetched;
  int sm_count = 0;

  static GemmProblem of(const FragmentLayout& layout, int64_t rows, int overlapping, Tokens tokens,
                        const codegen::GpuTarget& gpu);
  // Empty where a number is missing or cannot be.
  static std::optional<GemmProblem> from(const ProblemNumbers& numbers);
  ProblemNumbers numbers() const;

  int64_t row_units() const { return (n + kFragmentRows - 1) / kFragmentRows; }
  int64_t steps() const { return (k + unit_k - 1) / unit_k; }
  int64_t weight_bytes() const { return row_units() * steps() * unit_words * 4; }
};

// What numbers() told, for where so many launches run at once, if it does not wait.
void set_overlapping(ProblemNumbers& numbers, int launches);

}  // namespace tenon::kernels
