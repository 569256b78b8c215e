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

// Attention: what the gates of versions look at. A size that is open until Run may be any. Bias,
// sinks, pages and fp8 are what cuDNN documents; no attention of a session asks for them (sdpa.cc).
struct SdpaProblem {
  static constexpr int64_t kOpen = -1;
  int compute_major = 9;
  int64_t head_size = 0, value_size = 0;  // value_size 0: as head_size
  int64_t queries = kOpen, keys = kOpen;
  int64_t window = 0;  // keys that a query sees up to its own; 0: all
  // Keys behind a query's own are hidden, or those behind the right end of a window.
  bool causal = false, has_right_end = false;
  bool from_end = false;  // the last query stands at the last key
  bool has_lengths = false, has_bias = false, has_sinks = false, is_paged = false;
  bool fp8 = false, fp8_result = true;

  int64_t largest_head() const { return head_size > value_size ? head_size : value_size; }
};
// Whether SDPA can be asked about from a description of a GPU alone.
Support sdpa_without_device(int version, int compute_major);
// Of rows in versions.cc; the first that it meets is the reason.
Support sdpa(int version, const SdpaProblem& problem);

}  // namespace tenon::cudnn
