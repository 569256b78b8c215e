// What cuDNN can do from which version on, and where a version is known to be wrong. Versions as
// cudnnGetVersion codes them: 91900 is 9.19.0.
#pragma once

#include <cstdint>
#include <string>

#include "base/support.h"

namespace tenon::cudnn {

inline constexpr int kOldest = 90800;   // plans without a GPU
inline constexpr int kNewest = 100000;  // exclusive: another major version is another library
std::string version_text(int version);  // "9.19.0"

// Whether plans of convolutions can be made from a description of a GPU alone. Before 9.19 asking
// for Blackwell ends the process.
Support plans_without_device(int version, int compute_major);

// Block-scaled dots of Blackwell: 9.7 has them, and until 9.10 several GPUs driven by threads fail.
Support block_scaled_dot(int version, int compute_major);
// Before 9.13 a global scale in the graph is ignored without a word: it has to stay outside.
bool honours_global_scale(int version);
// Codes and scales as results, on sm_100 to sm_109.
Support block_scaled_results(int version, int compute_major);

// Attention of f16 and bf16 without a window (`window` none: 0) over `keys` keys.
struct SdpaProblem {
  int compute_major = 9;
  int64_t head_size = 0, keys = 0, window = 0;
  bool causal = false, fp8 = false, has_bias = false;
};
Support sdpa(int version, const SdpaProblem& problem);

}  // namespace tenon::cudnn
