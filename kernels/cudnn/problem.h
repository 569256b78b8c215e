// What a call of cuDNN's computes, as plain data: a graph for the sizes of each Run, and bytes for
// context models.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/shape.h"
#include "base/support.h"
#include "kernels/cudnn/block_scaled.h"
#include "kernels/cudnn/convolution.h"
#include "kernels/cudnn/graph.h"
#include "kernels/cudnn/pooling.h"
#include "kernels/cudnn/sdpa.h"
#include "kernels/planning/library_call.h"
#include "kernels/planning/saved_form.h"

namespace tenon::cudnn {

// Rows that a Run brings times a weight [n, k].
struct WeightDot {
  BlockScaledDot dot;
  int64_t n = 0, k = 0;
};

// Larger sizes are nobody's: sums of some stay far below 64 bits. Products are checked.
inline constexpr int64_t kMostExtent = int64_t{1} << 40;

using Problem = std::variant<Convolution, Pooling, Sdpa, WeightDot>;

std::string_view name(const Problem& problem);  // "cudnn_sdpa"

// Of a call of it: the graph's tensors in memory and a workspace; the sizes that the graph is made
// of and how many bytes of workspace there are.
kernels::CallForm form_of(const Problem& problem);

// `sizes`: the dims of x and y as they are stored; those of SdpaSizes; the rows of a dot. Throws
// UserError where no tensor has them.
Graph graph_of(const Problem& problem, std::span<const int64_t> sizes);

// Whether a plan of it may be made by this version. `sizes`: as far as they are known before Run.
Support takes(const Problem& problem, std::span<const Dim> sizes, int version, int compute_major);

void write(const Problem& problem, kernels::SavedWriter& to);
// Throws UserError for what no problem is. `version`: of the cuDNN that will be asked.
Problem read_problem(kernels::SavedReader& from, int version);

}  // namespace tenon::cudnn
