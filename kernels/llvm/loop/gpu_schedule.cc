// How a loop problem is walked by a GPU: one task is one CTA, and a tile's elements
// are dealt over them.
#include <algorithm>
#include <bit>

#include "kernels/llvm/loop/axes.h"
#include "kernels/llvm/loop/stages.h"

namespace tenon::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kPointwiseThreads = 128;
constexpr int kSquare = 32, kHalvesSquare = 64, kSquareThreads = 256;
constexpr int kColumnThreads = 32, kColumnUnroll = 8;
// A thread moves 16 bytes at a time, once: with functions of a few instructions more threads hide
// more than more loads per thread do.
constexpr int kAccessBytes = 16, kMostPerAccess = 8, kAccessesInFlight = 1;
// Elements of a row that one thread keeps in registers: many, since their loads are all in flight
// at once and few threads meet at a barrier; fewer where several rows are kept side by side.
constexpr int kPerThread = 32, kMostPerThread = 64, kMostWideRows = 2;
// Elements picked one by one need an address each.
constexpr int kMostPicked = 2;
// Threads of a row that fits into their registers, and of longer ones.
constexpr int kRowThreads = 128, kMostRowThreads = 512, kLongRowThreads = 512;
constexpr int kOpenRowThreads = 128;
constexpr int64_t kLongestHeldRow = 16384;
// A block with a row of this length has work enough: with a second one it would load only after
// having stored the first.
constexpr int64_t kLoneRow = 1024;
// Rows shorter than this leave most of a CTA idle unless it takes several.
constexpr int64_t kShortRow = 64;
// A CTA takes several tiles only where every SM still gets this many CTAs.
constexpr int64_t kCtasPerSm = 64, kMostTiles = 8;
// Shared memory for values between stages; the rest serves exchanges between threads.
constexpr int64_t kMostStashBytes = 160 << 10, kExchangeBytes = 32 << 10;

int64_t power_of_two_at_least(int64_t size) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, size))));
}

class GpuScheduler {
 public:
  GpuScheduler(const LoopProblem& problem, const codegen::GpuTarget& target)
      : problem_(problem), target_(target) {}

  LoopSchedule run() {
    schedule_.clamps_indices = true;
    schedule_.vector_axis = choose_vector_axis(problem_);
    schedule_.flat =
        needs_flat_lanes(problem_, schedule_.vector_axis) || has_short_irregular_rows();
    if (schedule_.flat) schedule_.vector_axis = -1;
    order_axes(problem_, schedule_);
    choose_tile();
    keep_whole_bytes();
    split_tasks();
    plan_stages(problem_, schedule_, stash_rules());
    return std::move(schedule_);
  }

 private:
  bool is_pointwise() const { return problem_.reduced_axes.empty() && problem_.ordered_axis < 0; }

  bool vector_is_kept() const {
    return schedule_.flat ||
           (schedule_.vector_axis >= 0 && !problem_.is_reduced(schedule_.vector_axis));
  }

  bool has_square_tiles() const {
    return is_pointwise() && !schedule_.flat && schedule_.row_axis >= 0 &&
           !has_packed_elements(problem_) && is_plain_along(problem_, schedule_.vector_axis);
  }

  // Short rows that no tile of several rows can take: lanes with coordinates of their own.
  bool has_short_irregular_rows() const {
    if (!is_pointwise() || problem_.domain.size() < 2) return false;
    const Dim& size = problem_.domain[schedule_.vector_axis];
    if (!size.is_constant() || size.value() >= kShortRow) return false;
    if (has_packed_elements(problem_)) return false;
    for (int axis = 0; axis < static_cast<int>(problem_.domain.size()); ++axis) {
      if (!is_plain_along(problem_, axis)) return true;
    }
    return false;
  }

  int threads_up_to(int64_t wanted) const {
    return static_cast<int>(
        std::clamp<int64_t>(power_of_two_at_least(wanted), kWarp, target_.threads));
  }

  int per_thread() const {
    return std::clamp(kAccessBytes / widest_stored_bytes(problem_), 1, kMostPerAccess);
  }

  void choose_tile() {
    if (!schedule_.flat && schedule_.vector_axis < 0) {
      schedule_.threads = kWarp;
    } else if (!vector_is_kept()) {
      choose_row();
    } else if (!problem_.reduced_axes.empty()) {
      choose_columns();
    } else if (!choose_turned_square()) {
      choose_pointwise();
    }
  }

  // Inputs that have another row for every result.
  int64_t rows_held() const {
    const AxisSet lanes = AxisSet{1} << schedule_.vector_axis;
    return std::count_if(problem_.loads.begin(), problem_.loads.end(),
                         [&](const tiling::Access& load) {
                           return (axes_of(load) & lanes) && (axes_of(load) & ~lanes);
                         });
  }

  // One block reduces a row; a row that fits stays in registers from the first stage to the last.
  void choose_row() {
    const Dim& size = schedule_.vector_size;
    if (!size.is_constant()) {
      schedule_.threads = threads_up_to(kOpenRowThreads);
      schedule_.lanes = schedule_.threads * per_thread();
      return;
    }
    const int64_t lanes = power_of_two_at_least(size.value());
    const int64_t most = rows_held() > kMostWideRows ? kPerThread : kMostPerThread;
    const int64_t each = std::clamp<int64_t>(lanes / kRowThreads, kPerThread, most);
    schedule_.threads = threads_up_to(lanes / each);
    const int64_t held = std::min(kMostRowThreads, target_.threads) * each;
    if (lanes <= std::min(held, kLongestHeldRow)) {
      schedule_.lanes = static_cast<int>(std::max<int64_t>(2, lanes));
      schedule_.whole_row = schedule_.reduced_axes.size() == 1;
    } else {
      schedule_.threads = threads_up_to(kLongRowThreads);
      schedule_.lanes = schedule_.threads * kMostPerAccess;
    }
  }

  // Every copy of such a function in the code brings its own table of constants.
  bool needs_tables() const {
    return std::any_of(problem_.region.begin(), problem_.region.end(), [&](ir::NodeId id) {
      const std::string& op = problem_.body->node(id).op;
      return op == "Sin" || op == "Cos" || op == "Tan";
    });
  }

  // Neighbouring results in neighbouring threads, several elements of a column in flight.
  void choose_columns() {
    schedule_.threads = kColumnThreads;
    schedule_.lanes = fit_lanes(kColumnThreads * std::min(2, per_thread()));
    schedule_.unroll = needs_tables() ? 1 : kColumnUnroll;
  }

  bool choose_turned_square() {
    if (!has_square_tiles()) return false;
    const int axis = turned_axis(problem_, schedule_.vector_axis);
    const auto is_long = [](const Dim& dim) { return !dim.is_constant() || dim.value() >= 8; };
    if (axis < 0 || !is_long(problem_.domain[axis]) || !is_long(schedule_.vector_size) ||
        !is_plain_along(problem_, axis)) {
      return false;
    }
    const int wanted = widest_stored_bytes(problem_) <= 2 ? kHalvesSquare : kSquare;
    const int side = target_.threads < kSquareThreads ? wanted / 4 : wanted;
    schedule_.threads = threads_up_to(kSquareThreads);
    schedule_.lanes = schedule_.tile_rows = side;
    walk_rows_along(axis, schedule_);
    return true;
  }

  // Whether some access needs an address per lane.
  bool picks_elements() const {
    if (schedule_.flat) return true;
    const AxisSet lanes = AxisSet{1} << schedule_.vector_axis;
    const auto picks = [&](const tiling::Access& access) {
      const Dim& stride = access.strides[schedule_.vector_axis];
      return !access.guards.empty() || !(stride.is(0) || stride.is(1)) ||
             std::any_of(access.gathers.begin(), access.gathers.end(),
                         [&](const tiling::GatherTerm& term) { return axes_of(term) & lanes; });
    };
    return std::any_of(problem_.loads.begin(), problem_.loads.end(), picks) ||
           std::any_of(problem_.stores.begin(), problem_.stores.end(),
                       [&](const LoopStore& store) { return picks(store.place); });
  }

  // A row of lanes, or several rows where the axis is short.
  void choose_pointwise() {
    schedule_.threads = threads_up_to(kPointwiseThreads);
    const int elements =
        schedule_.threads * (picks_elements() ? kMostPicked : kAccessesInFlight * per_thread());
    schedule_.lanes = fit_lanes(elements);
    if (schedule_.lanes == elements || !has_square_tiles() ||
        !is_plain_along(problem_, schedule_.row_axis)) {
      return;
    }
    schedule_.tile_rows = elements / schedule_.lanes;
    const Dim& rows = problem_.domain[schedule_.row_axis];
    if (rows.is_constant()) {
      schedule_.tile_rows = static_cast<int>(
          std::min<int64_t>(schedule_.tile_rows, power_of_two_at_least(rows.value())));
    }
  }

  // Lanes for the vector axis: few enough that none is idle where the size allows that.
  int fit_lanes(int64_t most) const {
    if (!schedule_.vector_size.is_constant()) return static_cast<int>(most);
    const int64_t size = std::max<int64_t>(2, schedule_.vector_size.value());
    if (size >= 2 * most && has_one_long_row()) return static_cast<int>(most);
    const int64_t whole = size & -size;  // the largest power of two that divides it
    const int64_t fitting = whole >= kWarp ? whole : power_of_two_at_least(size);
    return static_cast<int>(std::max<int64_t>(2, std::min(most, fitting)));
  }

  bool has_one_long_row() const { return schedule_.row_axis < 0 || !has_square_tiles(); }

  void keep_whole_bytes() {
    if (schedule_.tile_shape().empty()) return;
    for (const LoopStore& store : problem_.stores) {
      const int bits = bit_width(problem_.body->value(store.value).dtype);
      if (bits < 8) schedule_.lanes = std::max(schedule_.lanes, 8 / bits);
    }
  }

  void split_tasks() {
    const bool kept = vector_is_kept();
    const bool ordered = problem_.ordered_axis >= 0;
    const Dim rows = schedule_.row_axis < 0 ? Dim(1) : problem_.domain[schedule_.row_axis];
    const Dim row_tiles = ordered ? Dim(1) : ceil_div(rows, Dim(schedule_.tile_rows));
    const Dim vector_tiles = kept ? ceil_div(schedule_.vector_size, Dim(schedule_.lanes)) : Dim(1);
    Dim outer = 1;
    for (int axis : schedule_.outer_axes) outer = outer * problem_.domain[axis];

    const Dim enough = kCtasPerSm * std::max(1, target_.sm_count);
    const Dim several = floor_div(outer * row_tiles * vector_tiles, enough);
    const bool is_alone = schedule_.whole_row && schedule_.lanes >= kLoneRow;
    const Dim together = is_alone ? Dim(1) : max(Dim(1), min(several, Dim(kMostTiles)));
    const bool along_rows = !kept || vector_tiles.is(1);
    if (kept) {
      schedule_.vector_chunk = along_rows ? schedule_.vector_size : together * schedule_.lanes;
      schedule_.vector_chunks =
          along_rows ? Dim(1) : ceil_div(schedule_.vector_size, schedule_.vector_chunk);
    }
    if (schedule_.row_axis >= 0) {
      schedule_.row_chunk =
          ordered ? rows : Dim(schedule_.tile_rows) * (along_rows ? together : Dim(1));
      schedule_.row_chunks = ordered ? Dim(1) : ceil_div(rows, schedule_.row_chunk);
    }
    schedule_.tasks = outer * schedule_.row_chunks * schedule_.vector_chunks;
    // An index into nothing has no element to be moved to.
    for (const IndexCheck& check : problem_.checks) {
      schedule_.tasks = schedule_.tasks * min(Dim(1), check.bound);
    }
    schedule_.task_cost = 1000;
  }

  StashRules stash_rules() const {
    if (schedule_.whole_row) return {.bytes = 0, .loads = false, .outputs = false};
    return {.bytes = std::min(kMostStashBytes, target_.shared_bytes - kExchangeBytes),
            .loads = true,
            .outputs = false};
  }

  const LoopProblem& problem_;
  const codegen::GpuTarget& target_;
  LoopSchedule schedule_;
};

}  // namespace

LoopSchedule make_gpu_schedule(const LoopProblem& problem, const codegen::GpuTarget& target) {
  return GpuScheduler(problem, target).run();
}

}  // namespace tenon::kernels
