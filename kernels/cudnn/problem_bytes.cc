// Problems as bytes. A graph is made of what was read without looking again: every number is
// checked here, and lists fit each other.
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>

#include "base/error.h"
#include "kernels/cudnn/problem.h"

namespace tenon::cudnn {
namespace {

using kernels::SavedReader;
using kernels::SavedWriter;

// As in the variant.
enum class ProblemKind : uint8_t { kConvolution, kPooling, kSdpa, kWeightDot };

constexpr int64_t kMostBlock = 1024;
constexpr std::array kAutoPads = {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"};
constexpr std::initializer_list<DType> kRealTypes = {DType::kF32, DType::kF16, DType::kBF16};
constexpr std::initializer_list<DType> kCodeTypes = {DType::kF4E2M1, DType::kF8E4M3FN,
                                                     DType::kF8E5M2};
constexpr std::initializer_list<DType> kScaleTypes = {DType::kF8E4M3FN, DType::kF8E8M0};

void require(bool sound, const char* what) {
  if (!sound) throw UserError(what);
}

DType read_one_of(SavedReader& from, std::initializer_list<DType> known) {
  const DType dtype = from.dtype();
  require(std::ranges::count(known, dtype) == 1, "cuDNN is not asked for an element type");
  return dtype;
}

// ---- windows

void write_window(const WindowForm& window, SavedWriter& to) {
  for (const auto* list : {&window.kernel, &window.strides, &window.dilations, &window.pads_before,
                           &window.pads_after}) {
    to.numbers(*list);
  }
  to.text(window.auto_pad);
  to.flag(window.ceil_mode);
}

std::vector<int64_t> read_list(SavedReader& from, int64_t least) {
  return from.list([&] { return from.number(least, kMostExtent); });
}

WindowForm read_window(SavedReader& from) {
  WindowForm window;
  for (auto* list : {&window.kernel, &window.strides, &window.dilations})
    *list = read_list(from, 1);
  for (auto* list : {&window.pads_before, &window.pads_after}) *list = read_list(from, 0);
  window.auto_pad = from.text();
  window.ceil_mode = from.flag();
  const size_t spatial = window.kernel.size();
  require(spatial == 2 || spatial == 3, "a window has another number of dims");
  for (const auto* list :
       {&window.strides, &window.dilations, &window.pads_before, &window.pads_after}) {
    require(list->size() == spatial, "the lists of a window have different lengths");
  }
  require(std::ranges::count(kAutoPads, window.auto_pad) == 1, "auto_pad is unknown");
  return window;
}

// Of x and y. One spatial dim is stored as it is, and becomes two for cuDNN.
size_t read_rank(SavedReader& from, const WindowForm& window, bool channels_last) {
  const auto rank = static_cast<size_t>(from.number(3, 5));
  const bool adds_one = rank == 3 && window.kernel.size() == 2 && !channels_last;
  require(rank == window.kernel.size() + 2 || adds_one, "a window has another rank than its input");
  return rank;
}

// ---- convolutions

void write_body(const Convolution& problem, SavedWriter& to) {
  to.kind(problem.dtype);
  to.numbers(problem.filter);
  write_window(problem.window, to);
  for (const bool flag : {problem.channels_last, problem.has_bias, problem.has_summand,
                          problem.has_relu, problem.transposed}) {
    to.flag(flag);
  }
  to.number(problem.rank);
}

Convolution read_convolution(SavedReader& from) {
  Convolution problem;
  problem.dtype = read_one_of(from, kRealTypes);
  problem.filter = read_list(from, 1);
  problem.window = read_window(from);
  for (bool* flag : {&problem.channels_last, &problem.has_bias, &problem.has_summand,
                     &problem.has_relu, &problem.transposed}) {
    *flag = from.flag();
  }
  problem.rank = read_rank(from, problem.window, problem.channels_last);
  require(problem.filter.size() == problem.window.kernel.size() + 2 &&
              std::ranges::equal(std::span(problem.filter).subspan(2), problem.window.kernel),
          "a filter has another window than its convolution");
  const bool is_alone = !problem.has_bias && !problem.is_fused() && !problem.channels_last;
  require(is_alone || !problem.transposed, "something is added to a transposed convolution");
  return problem;
}

// ---- poolings

void write_body(const Pooling& problem, SavedWriter& to) {
  to.kind(problem.dtype);
  to.number(static_cast<int>(problem.mode));
  write_window(problem.window, to);
  to.number(problem.rank);
}

Pooling read_pooling(SavedReader& from) {
  Pooling problem;
  problem.dtype = read_one_of(from, kRealTypes);
  const int mode = from.small();
  require(mode == kAverageWithPads || mode == kAverageWithoutPads || mode == kMaximum,
          "a pooling is unknown");
  problem.mode = static_cast<ResampleMode>(mode);
  problem.window = read_window(from);
  problem.rank = read_rank(from, problem.window, /*channels_last=*/false);
  return problem;
}

// ---- attention

void write_body(const Sdpa& problem, SavedWriter& to) {
  to.kind(problem.dtype);
  for (const int64_t size : {problem.heads, problem.kv_heads, problem.depth, problem.value_depth}) {
    to.number(size);
  }
  to.real(problem.scale);
  to.number(problem.band.left);
  to.number(problem.band.right);
  to.flag(problem.band.from_end);
  to.flag(problem.has_lengths);
}

Sdpa read_sdpa(SavedReader& from, int version) {
  Sdpa problem;
  problem.dtype = read_one_of(from, kRealTypes);
  for (int64_t* size : {&problem.heads, &problem.kv_heads, &problem.depth, &problem.value_depth}) {
    *size = from.number(1, kMostExtent);
  }
  require(problem.heads % problem.kv_heads == 0, "heads do not come in groups");
  const double scale = from.real();
  require(std::abs(scale) <= std::numeric_limits<float>::max(), "a scale is no number");
  problem.scale = static_cast<float>(scale);
  problem.band.left = from.number(-1, kMostExtent);
  problem.band.right = from.number(-1, kMostExtent);
  problem.band.from_end = from.flag();
  problem.has_lengths = from.flag();
  problem.version = version;
  return problem;
}

// ---- block-scaled dots

void write_body(const WeightDot& problem, SavedWriter& to) {
  const BlockScaledDot& dot = problem.dot;
  for (const DType dtype : {dot.a_type, dot.b_type, dot.scale_type, dot.result}) to.kind(dtype);
  to.number(dot.block);
  to.flag(dot.has_factor);
  to.flag(dot.has_codes());
  if (dot.has_codes()) to.kind(dot.result_scale_type);
  to.number(problem.n);
  to.number(problem.k);
}

WeightDot read_dot(SavedReader& from) {
  WeightDot problem;
  BlockScaledDot& dot = problem.dot;
  dot.a_type = read_one_of(from, kCodeTypes);
  dot.b_type = read_one_of(from, kCodeTypes);
  dot.scale_type = read_one_of(from, kScaleTypes);
  dot.result = from.dtype();
  dot.block = from.number(1, kMostBlock);
  dot.has_factor = from.flag();
  if (from.flag()) dot.result_scale_type = read_one_of(from, kScaleTypes);
  const auto& results = dot.has_codes() ? kCodeTypes : kRealTypes;
  require(std::ranges::count(results, dot.result) == 1, "a dot has another result");
  problem.n = from.number(1, kMostExtent);
  problem.k = from.number(1, kMostExtent);
  return problem;
}

}  // namespace

void write(const Problem& problem, SavedWriter& to) {
  to.kind(static_cast<ProblemKind>(problem.index()));
  std::visit([&](const auto& known) { write_body(known, to); }, problem);
}

Problem read_problem(SavedReader& from, int version) {
  switch (from.kind(ProblemKind::kWeightDot)) {
    case ProblemKind::kConvolution:
      return read_convolution(from);
    case ProblemKind::kPooling:
      return read_pooling(from);
    case ProblemKind::kSdpa:
      return read_sdpa(from, version);
    case ProblemKind::kWeightDot:
      return read_dot(from);
  }
  throw InternalError("a call of cuDNN of no kind");
}

}  // namespace tenon::cudnn
