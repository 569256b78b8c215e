#include "kernels/cudnn/problem.h"

#include "base/error.h"
#include "kernels/cudnn/versions.h"

namespace tenon::cudnn {
namespace {

using kernels::CallForm;

template <typename... Cases>
struct Match : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Match(Cases...) -> Match<Cases...>;

// A workspace and its size come last.
CallForm call_form(size_t read, size_t written, size_t sizes) {
  return {.buffers = read + written + 1, .numbers = sizes + 1, .first_written = read};
}

struct FormOf {
  CallForm operator()(const Convolution& problem) const {
    return call_form(2 + (problem.has_summand ? 1 : 0) + (problem.has_bias ? 1 : 0), 1,
                     2 * problem.rank);
  }
  CallForm operator()(const Pooling& problem) const { return call_form(1, 1, 2 * problem.rank); }
  CallForm operator()(const Sdpa& problem) const {
    return call_form(3 + (problem.has_lengths ? 2 : 0) + (problem.has_distances() ? 1 : 0), 1,
                     SdpaSizes::kCount);
  }
  CallForm operator()(const WeightDot& problem) const {
    return call_form(4 + (problem.dot.has_factor ? 1 : 0), problem.dot.has_codes() ? 2 : 1, 1);
  }
};

// How many of the sizes are extents of tensors; strides follow.
size_t extents_of(const Problem& problem, size_t sizes) {
  return std::holds_alternative<Sdpa>(problem) ? 3 : sizes;
}

void require_sizes(const Problem& problem, std::span<const int64_t> sizes) {
  if (sizes.size() + 1 != form_of(problem).numbers) {
    throw InternalError("a call of cuDNN has another number of sizes");
  }
  const size_t extents = extents_of(problem, sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= (i < extents ? 1 : 0) && sizes[i] <= kMostExtent) continue;
    throw UserError(std::string(name(problem)) + ": a tensor's size is out of range");
  }
}

int64_t known(const Dim& size) { return size.is_constant() ? size.value() : SdpaProblem::kOpen; }

}  // namespace

std::string_view name(const Problem& problem) {
  return std::visit(Match{[](const Convolution&) { return "cudnn_convolution"; },
                          [](const Pooling&) { return "cudnn_pooling"; },
                          [](const Sdpa&) { return "cudnn_sdpa"; },
                          [](const WeightDot&) { return "cudnn_block_scaled_dot"; }},
                    problem);
}

CallForm form_of(const Problem& problem) { return std::visit(FormOf{}, problem); }

Graph graph_of(const Problem& problem, std::span<const int64_t> sizes) {
  require_sizes(problem, sizes);
  const auto of_window = [&](const auto& made) {
    return made.graph(sizes.first(made.rank), sizes.subspan(made.rank));
  };
  return std::visit(
      Match{[&](const Convolution& made) { return of_window(made); },
            [&](const Pooling& made) { return of_window(made); },
            [&](const Sdpa& made) { return made.graph(SdpaSizes::from(sizes)); },
            [&](const WeightDot& made) {
              return made.dot.graph({.batch = 1, .m = sizes[0], .n = made.n, .k = made.k});
            }},
      problem);
}

Support takes(const Problem& problem, std::span<const Dim> sizes, int version, int compute_major) {
  if (const auto* attention = std::get_if<Sdpa>(&problem)) {
    const SdpaProblem gates = attention->gates(known(sizes[1]), known(sizes[2]), compute_major);
    if (Support answer = sdpa(version, gates); !answer) return answer;
    return sdpa_without_device(version, compute_major);
  }
  if (const auto* product = std::get_if<WeightDot>(&problem)) {
    return takes(product->dot, version, compute_major);
  }
  return plans_without_device(version, compute_major);
}

}  // namespace tenon::cudnn
