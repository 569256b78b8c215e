#include "kernels/cudnn/versions.h"

#include <fmt/format.h>

namespace tenon::cudnn {
namespace {

Support needs(int version, int oldest, const char* what) {
  if (version >= oldest) return Support::yes();
  return Support::no(fmt::format("{} needs cuDNN {}, and this is {}", what, version_text(oldest),
                                 version_text(version)));
}

Support sdpa_of_f16(int version, const SdpaProblem& problem) {
  if (problem.compute_major < 8) return Support::no("SDPA needs sm_80 or newer");
  if (version == 91000 || version == 91001) {
    return Support::no(fmt::format("SDPA of cuDNN {} gives wrong results", version_text(version)));
  }
  if (version == 91400 && problem.window > 0 && !problem.causal && problem.keys > 1024) {
    return Support::no("cuDNN 9.14.0 is wrong for windows over more than 1024 keys");
  }
  const int64_t most = problem.compute_major == 9 ? 256 : 128;
  if (problem.head_size % 8 != 0 || problem.head_size > most) {
    return Support::no(
        fmt::format("SDPA takes heads whose size is a multiple of 8 and at most {}, not {}", most,
                    problem.head_size));
  }
  return Support::yes();
}

Support sdpa_of_fp8(int version, const SdpaProblem& problem) {
  if (problem.compute_major < 9) return Support::no("SDPA of fp8 needs sm_90 or newer");
  if (Support answer = needs(version, 90100, "SDPA of fp8"); !answer) return answer;
  if (version == 91000) return Support::no("SDPA of fp8 of cuDNN 9.10.0 gives wrong results");
  if (problem.has_bias) return Support::no("SDPA of fp8 takes no bias");
  const int64_t most = problem.compute_major == 9 ? 256 : 128;
  if (problem.head_size % 16 != 0 || problem.head_size > most) {
    return Support::no(
        fmt::format("SDPA of fp8 takes heads whose size is a multiple of 16 and at most {}, not {}",
                    most, problem.head_size));
  }
  return Support::yes();
}

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

Support sdpa(int version, const SdpaProblem& problem) {
  return problem.fp8 ? sdpa_of_fp8(version, problem) : sdpa_of_f16(version, problem);
}

}  // namespace tenon::cudnn
