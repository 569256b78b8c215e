#include "codegen/layouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <tuple>

namespace tenon::codegen {

namespace {

constexpr int kMaxRun = 8;
constexpr int kWarpgroup = 128, kWarpgroupRows = 64, kStepColumns = 16;
constexpr int kFragmentRows = 16, kFragmentColumns = 8, kFragmentRegisters = 4;

int fragments(int size, int of) { return (size + of - 1) / of; }

}  // namespace

Layout Layout::uniform(int threads) {
  Layout out;
  out.threads = threads;
  return out;
}

Layout Layout::splat(const std::vector<int>& shape, int threads) {
  Layout out = dealt(shape, threads);
  out.kind = Kind::kSplat;
  out.run = 1;
  return out;
}

Layout Layout::dealt(const std::vector<int>& shape, int threads) {
  if (shape.empty()) return uniform(threads);
  Layout out = uniform(threads);
  out.kind = Kind::kDealt;
  out.rows = shape.size() == 2 ? shape[0] : 1;
  out.columns = shape.back();
  auto share = static_cast<unsigned>(std::max<int64_t>(1, out.elements() / threads));
  out.run = std::min(kMaxRun, static_cast<int>(std::bit_floor(share)));
  return out;
}

Layout Layout::mma(const std::vector<int>& shape, int threads, bool rows_together) {
  Layout best = uniform(threads);
  best.kind = Kind::kMma;
  best.rows = shape[0];
  best.columns = shape[1];
  int rows = fragments(shape[0], kFragmentRows), columns = fragments(shape[1], kFragmentColumns);
  // Most warps busy first, then the fewest operands to read for one step along k.
  std::optional<std::tuple<int, int>> best_cost;
  for (int m = 1; m <= threads / kWarp && rows % m == 0; m *= 2) {
    for (int n = 1; m * n <= threads / kWarp && columns % n == 0; n *= 2) {
      int operands = rows / m * kFragmentRows + columns / n * kFragmentColumns;
      std::tuple cost{-m * n, rows_together ? n : operands};
      if (best_cost && *best_cost <= cost) continue;
      best_cost = cost;
      best.warps_m = m;
      best.warps_n = n;
    }
  }
  return best;
}

Layout Layout::bits(const std::vector<int>& shape, int threads, std::vector<int> thread_bits,
                    std::vector<int> register_bits) {
  Layout out = uniform(threads);
  out.kind = Kind::kBits;
  out.rows = shape.size() == 2 ? shape[0] : 1;
  out.columns = shape.empty() ? 1 : shape.back();
  out.thread_bits = std::move(thread_bits);
  out.register_bits = std::move(register_bits);
  return out;
}

namespace {

int log2_of(int n) { return std::countr_zero(static_cast<unsigned>(n)); }

// Whole warpgroups, each with the same number of blocks of 64 rows.
bool fits_warpgroups(const std::vector<int>& shape, int threads, int columns) {
  auto is_power_of_two = [](int n) { return std::has_single_bit(static_cast<unsigned>(n)); };
  return shape.size() == 2 && is_power_of_two(shape[0]) && is_power_of_two(shape[1]) &&
         is_power_of_two(threads) && threads >= kWarpgroup && shape[1] >= columns &&
         int64_t{shape[0]} * kWarpgroup >= int64_t{threads} * kWarpgroupRows;
}

// Row bits of the four warps of a warpgroup, then of the warpgroups; those between are the blocks
// that one warpgroup has.
struct RowBits {
  std::vector<int> warps, blocks;

  RowBits(int rows, int threads) : warps{4, 5} {
    int warpgroups = log2_of(threads / kWarpgroup), all = log2_of(rows);
    for (int bit = log2_of(kWarpgroupRows); bit < all - warpgroups; ++bit) blocks.push_back(bit);
    for (int bit = all - warpgroups; bit < all; ++bit) warps.push_back(bit);
  }
};

}  // namespace

std::optional<Layout> Layout::sums(const std::vector<int>& shape, int threads) {
  if (!fits_warpgroups(shape, threads, kFragmentColumns)) return std::nullopt;
  int columns = log2_of(shape[1]);
  RowBits rows(shape[0], threads);
  std::vector<int> thread_bits{1, 2, columns, columns + 1, columns + 2};
  for (int bit : rows.warps) thread_bits.push_back(columns + bit);
  std::vector<int> register_bits{0, columns + 3};
  for (int bit = 3; bit < columns; ++bit) register_bits.push_back(bit);
  for (int bit : rows.blocks) register_bits.push_back(columns + bit);
  return bits(shape, threads, thread_bits, register_bits);
}

std::optional<Layout> Layout::left_operand(const std::vector<int>& shape, int threads) {
  if (!fits_warpgroups(shape, threads, kStepColumns)) return std::nullopt;
  int columns = log2_of(shape[1]);
  RowBits rows(shape[0], threads);
  std::vector<int> thread_bits{1, 2, columns, columns + 1, columns + 2};
  for (int bit : rows.warps) thread_bits.push_back(columns + bit);
  std::vector<int> register_bits{0, columns + 3, 3};
  for (int bit = 4; bit < columns; ++bit) register_bits.push_back(bit);
  for (int bit : rows.blocks) register_bits.push_back(columns + bit);
  return bits(shape, threads, thread_bits, register_bits);
}

std::optional<Layout> Layout::right_operand(const std::vector<int>& shape, int threads, int groups,
                                            bool groups_have_k) {
  auto is_power_of_two = [](int n) { return std::has_single_bit(static_cast<unsigned>(n)); };
  int warps = threads / kWarp;
  if (shape.size() != 2 || groups < 1 || warps < groups) return std::nullopt;
  for (int size : {shape[0], shape[1], threads, groups}) {
    if (!is_power_of_two(size)) return std::nullopt;
  }
  int all_n = log2_of(shape[1]), own_n = all_n, own_k = log2_of(shape[0]);
  (groups_have_k ? own_k : own_n) -= log2_of(groups);
  if (own_n < log2_of(kFragmentColumns) || own_k < log2_of(kStepColumns)) return std::nullopt;
  std::vector<int> thread_bits{all_n + 1, all_n + 2, 0, 1, 2};
  for (int warp = 1; warp < warps / groups; warp *= 2) thread_bits.push_back(-1);
  for (int group = 0; group < log2_of(groups); ++group) {
    thread_bits.push_back(groups_have_k ? all_n + own_k + group : own_n + group);
  }
  std::vector<int> register_bits{all_n, all_n + 3};
  for (int bit = 3; bit < own_n; ++bit) register_bits.push_back(bit);
  for (int bit = 4; bit < own_k; ++bit) register_bits.push_back(all_n + bit);
  return bits(shape, threads, thread_bits, register_bits);
}

Layout Layout::replicated(const std::vector<int>& shape, int threads) {
  Layout out =
      bits(shape, threads, std::vector<int>(static_cast<size_t>(log2_of(threads)), -1), {});
  for (int bit = 0; 1 << bit < out.elements(); ++bit) out.register_bits.push_back(bit);
  return out;
}

Layout Layout::rows_of() const {
  Layout out = *this;
  out.kind = Kind::kRows;
  out.columns = out.warps_n = 1;
  return out;
}

Layout Layout::columns_of() const {
  Layout out = *this;
  out.kind = Kind::kColumns;
  out.rows = 1;
  return out;
}

int64_t Layout::elements() const { return int64_t{rows} * columns; }
int Layout::fragments_m() const { return fragments(rows, kFragmentRows) / warps_m; }
int Layout::fragments_n() const { return fragments(columns, kFragmentColumns) / warps_n; }

int Layout::registers() const {
  switch (kind) {
    case Kind::kUniform:
    case Kind::kSplat:
      return 1;
    case Kind::kDealt: {
      int64_t wave = int64_t{threads} * run;
      return static_cast<int>((elements() + wave - 1) / wave) * run;
    }
    case Kind::kMma:
      return fragments_m() * fragments_n() * kFragmentRegisters;
    case Kind::kRows:
      return fragments_m() * 2;
    case Kind::kColumns:
      return fragments_n() * 2;
    default:
      return 1 << register_bits.size();
  }
}

int64_t Layout::element_of(int thread, int reg) const {
  if (kind == Kind::kUniform || is_splat()) return 0;
  if (kind == Kind::kDealt) {
    if (elements() < threads) return thread % elements();
    int64_t element = (int64_t{reg / run} * threads + thread) * run + reg % run;
    return element < elements() ? element : -1;
  }
  if (kind == Kind::kBits) {
    int64_t element = 0;
    for (size_t i = 0; i < thread_bits.size(); ++i) {
      if (thread_bits[i] >= 0) element |= int64_t{thread >> i & 1} << thread_bits[i];
    }
    for (size_t i = 0; i < register_bits.size(); ++i) {
      element |= int64_t{reg >> i & 1} << register_bits[i];
    }
    return element;
  }
  int warp = thread / kWarp, lane = thread % kWarp;
  int warp_m = warp % warps_m, warp_n = warp / warps_m % warps_n;
  auto row_of = [&](int fragment, int half) {
    return (warp_m * fragments_m() + fragment) * kFragmentRows + lane / 4 + 8 * half;
  };
  auto column_of = [&](int fragment, int odd) {
    return (warp_n * fragments_n() + fragment) * kFragmentColumns + lane % 4 * 2 + odd;
  };
  if (kind == Kind::kRows) {
    int row = row_of(reg / 2, reg % 2);
    return row < rows ? row : -1;
  }
  if (kind == Kind::kColumns) {
    int column = column_of(reg / 2, reg % 2);
    return column < columns ? column : -1;
  }
  int fragment = reg / kFragmentRegisters, place = reg % kFragmentRegisters;
  int row = row_of(fragment / fragments_n(), place / 2);
  int column = column_of(fragment % fragments_n(), place % 2);
  return row < rows && column < columns ? int64_t{row} * columns + column : -1;
}

bool Layout::is_first_copy(int thread, int) const {
  int warp = thread / kWarp, lane = thread % kWarp;
  switch (kind) {
    case Kind::kUniform:
    case Kind::kSplat:
      return thread == 0;
    case Kind::kDealt:
      return elements() >= threads || thread < elements();
    case Kind::kMma:
      return warp < warps_m * warps_n;
    case Kind::kRows:
      return warp < warps_m && lane % 4 == 0;
    case Kind::kColumns:
      return warp % warps_m == 0 && warp < warps_m * warps_n && lane / 4 == 0;
    default:
      for (size_t i = 0; i < thread_bits.size(); ++i) {
        if (thread_bits[i] < 0 && (thread >> i & 1)) return false;
      }
      return true;
  }
}

int Layout::neighbours() const {
  int count = 0;
  while (count < static_cast<int>(register_bits.size()) && register_bits[count] == count &&
         2 << count <= columns) {
    ++count;
  }
  return 1 << count;
}

bool Layout::is_linear() const {
  auto is_power_of_two = [](int n) { return std::has_single_bit(static_cast<unsigned>(n)); };
  if (is_splat() || !is_power_of_two(threads)) return false;
  if (!is_power_of_two(rows) || !is_power_of_two(columns)) return false;
  bool has_rows = kind == Kind::kMma || kind == Kind::kRows;
  bool has_columns = kind == Kind::kMma || kind == Kind::kColumns;
  return (!has_rows || rows % kFragmentRows == 0) &&
         (!has_columns || columns % kFragmentColumns == 0);
}

std::optional<LinearMap> Layout::linear() const {
  if (!is_linear()) return std::nullopt;
  std::vector<uint64_t> switched;
  for (int thread = 1; thread < threads; thread *= 2) {
    switched.push_back(static_cast<uint64_t>(element_of(thread, 0)));
  }
  for (int reg = 1; reg < registers(); reg *= 2) {
    switched.push_back(static_cast<uint64_t>(element_of(0, reg)));
  }
  return LinearMap(log2_of(rows) + log2_of(columns), switched);
}

bool Layout::same_as(const Layout& other) const {
  if (*this == other) return true;
  if (!is_linear() || !other.is_linear() || threads != other.threads) return false;
  if (elements() != other.elements() || registers() != other.registers()) return false;
  for (int thread = 1; thread < threads; thread *= 2) {
    if (element_of(thread, 0) != other.element_of(thread, 0)) return false;
  }
  for (int reg = 1; reg < registers(); reg *= 2) {
    if (element_of(0, reg) != other.element_of(0, reg)) return false;
  }
  return true;
}

std::string Layout::text() const {
  constexpr std::array kNames{"uniform", "splat", "dealt", "mma", "rows", "columns", "bits"};
  std::string out = fmt::format("{}[{},{}]", kNames[static_cast<size_t>(kind)], rows, columns);
  if (kind == Kind::kDealt) return out + fmt::format(" run {}", run);
  if (is_bits()) {
    return out + fmt::format(" threads {} registers {}", fmt::join(thread_bits, " "),
                             fmt::join(register_bits, " "));
  }
  return is_special() ? out + fmt::format(" warps {}x{}", warps_m, warps_n) : out;
}

}  // namespace tenon::codegen
