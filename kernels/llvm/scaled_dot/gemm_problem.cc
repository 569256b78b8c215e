#include "kernels/llvm/scaled_dot/gemm_problem.h"

#include <algorithm>
#include <limits>

#include "kernels/planning/number_reader.h"

namespace tenon::kernels {
GemmProblem GemmProblem::of(const FragmentLayout& layout, int64_t rows, int overlapping,
                            Tokens tokens, const codegen::GpuTarget& gpu) {
  return {.n = layout.n,
          .k = layout.k,
          .rows = rows,
          .unit_k = layout.depth(),
          .unit_words = layout.unit_words(),
          .row_terms = layout.row_terms,
          .is_plain = layout.is_plain(),
          .can_accumulate_per_block = layout.can_accumulate_per_block(),
          .overlapping = overlapping,
          .tokens = tokens,
          .sm_count = gpu.sm_count};
}

ProblemNumbers GemmProblem::numbers() const {
  return {{"n", n},
          {"k", k},
          {"rows", rows},
          {"unit_k", unit_k},
          {"unit_words", unit_words},
          {"row_terms", row_terms},
          {"plain", is_plain},
          {"per_block", can_accumulate_per_block},
          {"overlaps", overlapping},
          {"tokens", static_cast<int64_t>(tokens)},
          {"sm_count", sm_count}};
}

std::optional<GemmProblem> GemmProblem::from(const ProblemNumbers& numbers) {
  constexpr int64_t kMostSize = std::numeric_limits<int32_t>::max();
  constexpr int kMostWords = 1 << 20, kMostTerms = 64, kMostSms = 1 << 16;
  NumberReader reader(numbers);
  GemmProblem problem;
  problem.n = reader.read("n", 1, kMostSize);
  problem.k = reader.read("k", 1, kMostSize);
  problem.rows = reader.read("rows", 1, kMostSize);
  problem.unit_k = reader.read_int("unit_k", 1, kMostWords);
  problem.unit_words = reader.read_int("unit_words", 1, kMostWords);
  problem.row_terms = reader.read_int("row_terms", 1, kMostTerms);
  problem.is_plain = reader.read("plain", 0, 1) != 0;
  problem.can_accumulate_per_block = reader.read("per_block", 0, 1) != 0;
  problem.overlapping = reader.read_int("overlaps", 0, kManyLaunches);
  if (problem.overlapping == 1) problem.overlapping = kManyLaunches;  // an older log: some did
  problem.tokens =
      static_cast<Tokens>(reader.read("tokens", 0, static_cast<int64_t>(Tokens::kComputed)));
  problem.sm_count = reader.read_int("sm_count", 1, kMostSms);
  if (!reader.ok()) return std::nullopt;
  return problem;
}

void set_overlapping(ProblemNumbers& numbers, int launches) {
  for (auto& [name, number] : numbers) {
    if (name == "overlaps" && number > 0) number = std::clamp(launches, 2, kManyLaunches);
  }
}

}  // namespace tenon::kernels
