#include "kernels/cudnn/versions.h"

#include <fmt/format.h>

#include <span>

namespace tenon::cudnn {
namespace {

Support needs(int version, int oldest, const char* what) {
  if (version >= oldest) return Support::yes();
  return Support::no(fmt::format("{} needs cuDNN {}, and this is {}", what, version_text(oldest),
                                 version_text(version)));
}

// Versions from `first` to `last` are refused what a row meets.
struct SdpaGate {
  int first, last;
  bool (*meets)(const SdpaProblem& problem);
  const char* reason;
};
constexpr int kAny = 0, kNoEnd = kNewest;

bool may_be(int64_t size, int64_t number) { return size == SdpaProblem::kOpen || size == number; }
bool may_be_equal(const SdpaProblem& p) {
  return p.queries == SdpaProblem::kOpen || may_be(p.keys, p.queries);
}
bool has_more_queries(const SdpaProblem& p) {
  return p.keys != SdpaProblem::kOpen && p.queries > p.keys && !p.has_lengths;
}
bool is_no_multiple(const SdpaProblem& p, int64_t of) {
  return p.head_size % of != 0 || p.value_size % of != 0;
}

constexpr SdpaGate kSdpaGates[] = {
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.compute_major < 8; },
     "SDPA needs sm_80 or newer"},
    {91000, 91001, [](const SdpaProblem&) { return true; },
     "SDPA of cuDNN 9.10.0 and 9.10.1 gives wrong results"},
    {91400, 91400,
     [](const SdpaProblem& p) {
       const bool is_long = p.keys == SdpaProblem::kOpen || p.keys > 1024;
       return p.window > 0 && !p.causal && is_long;
     },
     "cuDNN 9.14.0 is wrong for windows over more than 1024 keys"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return is_no_multiple(p, 8); },
     "SDPA takes heads whose size is a multiple of 8"},
    {kAny, 90900,
     [](const SdpaProblem& p) { return p.compute_major == 9 && p.largest_head() > 256; },
     "SDPA of heads above 256 needs a cuDNN after 9.9"},
    {kAny, 90900,
     [](const SdpaProblem& p) { return p.compute_major == 8 && p.largest_head() > 128; },
     "SDPA of heads above 128 on sm_8x needs a cuDNN after 9.9"},
    {kAny, 90899,
     [](const SdpaProblem& p) { return p.compute_major >= 10 && p.largest_head() > 128; },
     "SDPA of heads above 128 on Blackwell needs cuDNN 9.9"},
    {kAny, kNoEnd,
     [](const SdpaProblem& p) { return (p.from_end || p.window > 0) && has_more_queries(p); },
     "SDPA that counts from the last key, or has a window, takes no more queries than keys"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.from_end && p.has_bias; },
     "SDPA that counts from the last key takes no bias"},
    {kAny, 90900,
     [](const SdpaProblem& p) {
       return p.compute_major == 9 && p.window > 0 && p.from_end && may_be_equal(p);
     },
     "a window from the last key with as many queries as keys needs a cuDNN after 9.9"},
    {kAny, 91001, [](const SdpaProblem& p) { return p.window > 0 && (!p.causal || p.has_bias); },
     "a window that is not causal, or has a bias, needs cuDNN 9.10.2"},
    {kAny, 90900,
     [](const SdpaProblem& p) {
       const bool is_wide = p.compute_major == 10 && p.largest_head() > 128;
       return may_be(p.queries, 1) && (p.has_right_end || p.causal || is_wide);
     },
     "one query with a mask, or heads above 128 on Blackwell, needs a cuDNN after 9.9"},
    {kAny, 91299, [](const SdpaProblem& p) { return p.has_sinks; },
     "SDPA with sinks needs cuDNN 9.13"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.has_sinks && may_be(p.queries, 1); },
     "SDPA of one query takes no sinks"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.is_paged && !p.has_lengths; },
     "paged SDPA needs the lengths of batch rows"},
    {kAny, 90900, [](const SdpaProblem& p) { return p.is_paged && p.largest_head() > 128; },
     "paged SDPA of heads above 128 needs a cuDNN after 9.9"},
};

constexpr SdpaGate kFp8SdpaGates[] = {
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.compute_major < 9; },
     "SDPA of fp8 needs sm_90 or newer"},
    {kAny, 90099, [](const SdpaProblem&) { return true; }, "SDPA of fp8 needs cuDNN 9.1"},
    {91000, 91000, [](const SdpaProblem&) { return true; },
     "SDPA of fp8 of cuDNN 9.10.0 gives wrong results"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.has_bias; }, "SDPA of fp8 takes no bias"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return is_no_multiple(p, 16); },
     "SDPA of fp8 takes heads whose size is a multiple of 16"},
    {kAny, kNoEnd,
     [](const SdpaProblem& p) { return p.compute_major == 9 && p.largest_head() > 256; },
     "SDPA of fp8 takes heads up to 256"},
    {kAny, kNoEnd,
     [](const SdpaProblem& p) {
       const bool is_latent = p.head_size == 192 && p.value_size == 128;
       return p.compute_major >= 10 && p.largest_head() > 128 && !is_latent;
     },
     "SDPA of fp8 on Blackwell takes heads up to 128, or 192 with values of 128"},
    {kAny, 91899, [](const SdpaProblem& p) { return p.compute_major >= 10 && p.head_size > 128; },
     "SDPA of fp8 with heads of 192 needs cuDNN 9.19"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return p.from_end && p.compute_major < 10; },
     "SDPA of fp8 that counts from the last key needs Blackwell"},
    {kAny, 90699, [](const SdpaProblem& p) { return p.from_end; },
     "SDPA of fp8 that counts from the last key needs cuDNN 9.7"},
    {kAny, kNoEnd, [](const SdpaProblem& p) { return !p.fp8_result && p.compute_major < 10; },
     "SDPA of fp8 with a wider result needs Blackwell"},
    {kAny, 91299, [](const SdpaProblem& p) { return !p.fp8_result; },
     "SDPA of fp8 with a wider result needs cuDNN 9.13"},
};

}  // namespace

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Support plans_without_device(int version, int compute_major) {
  if (compute_major < 10) return needs(version, 90800, "a plan without a GPU");
  return needs(version, 91900, "a plan for Blackwell without a GPU");
}

Support block_scaled_dot(int version, int compute_major) {
  if (compute_major < 10) return Support::no("block-scaled dots of cuDNN need sm_100 or newer");
  if (Support answer = needs(version, 90700, "a block-scaled dot"); !answer) return answer;
  return needs(version, 91000, "a block-scaled dot that several GPUs may run");
}

bool honours_global_scale(int version) { return version >= 91300; }

Support block_scaled_results(int version, int compute_major) {
  if (compute_major != 10) return Support::no("block-scaled results need sm_100 to sm_109");
  return needs(version, 91400, "a block-scaled result");
}

Support sdpa_without_device(int version, int compute_major) {
  if (Support answer = needs(version, 91100, "SDPA without a GPU"); !answer) return answer;
  return plans_without_device(version, compute_major);
}

Support sdpa(int version, const SdpaProblem& asked) {
  SdpaProblem problem = asked;
  if (problem.value_size == 0) problem.value_size = problem.head_size;
  const auto gates = problem.fp8 ? std::span<const SdpaGate>(kFp8SdpaGates)
                                 : std::span<const SdpaGate>(kSdpaGates);
  for (const SdpaGate& gate : gates) {
    if (version < gate.first || version > gate.last || !gate.meets(problem)) continue;
    return Support::no(fmt::format("{} (this is cuDNN {})", gate.reason, version_text(version)));
  }
  return Support::yes();
}

}  // namespace tenon::cudnn
