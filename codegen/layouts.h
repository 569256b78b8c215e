// How the elements of tiles are dealt over the threads of a CTA, and which tile lies how. Plain
// arithmetic, no LLVM: element_of() is what the emitted address arithmetic must agree with.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/linear_map.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

inline constexpr int kWarp = 32;

// Which element register r of thread t holds. Tiles are seen as rows x columns: rank 1 is one row.
//   uniform  one element, the same in every thread (rank 0)
//   splat    one register for all elements, which are equal
//   dealt    runs of `run` consecutive elements in row-major order, one thread after the other, the
//            first thread again after the last; a tile smaller than the CTA repeats
//   mma      sums of mma.m16n8: fragments of 16x8, split over a grid of warps
//   rows     one element per row, as the rows of an mma tile lie
//   columns  one element per column, likewise
//   bits     each bit of a thread's or a register's number switches one bit of the element number,
//            or none: then threads hold copies. For sizes and blocks that are powers of two.
struct Layout {
  enum class Kind : uint8_t {
    kUniform,
    kSplat,
    kDealt,
    kMma,
    kRows,
    kColumns,
    kBits
  } kind = Kind::kUniform;
  int threads = 1;
  int rows = 1, columns = 1;  // of the tile; for rows and columns, of the mma tile
  int run = 1;                // dealt only
  int warps_m = 1, warps_n = 1;
  // bits only, the lowest first: which bit of the row-major element number, -1 for none.
  std::vector<int> thread_bits, register_bits;

  static Layout uniform(int threads);
  static Layout dealt(const std::vector<int>& shape, int threads);
  // `rows_together`: a row of the tile is split over as few warps as possible.
  static Layout mma(const std::vector<int>& shape, int threads, bool rows_together);
  static Layout bits(const std::vector<int>& shape, int threads, std::vector<int> thread_bits,
                     std::vector<int> register_bits);
  // Sums of a product whose rows are dealt 64 to a warpgroup (wgmma), which are 16 to a warp
  // (mma.sync): fragments of 16x8 either way. Nothing where the sizes do not allow it.
  static std::optional<Layout> sums(const std::vector<int>& shape, int threads);
  // Its left operand [rows, k] as registers, four words for 16 columns.
  static std::optional<Layout> left_operand(const std::vector<int>& shape, int threads);
  // Its right operand as registers, two words for 16 k and 8 columns, where each group of warps has
  // columns of its own, or k.
  static std::optional<Layout> right_operand(const std::vector<int>& shape, int threads, int groups,
                                             bool groups_have_k);
  // A tile of equal elements that is only read in other layouts.
  static Layout splat(const std::vector<int>& shape, int threads);
  // The whole tile in every thread. For sizes and blocks that are powers of two.
  static Layout replicated(const std::vector<int>& shape, int threads);
  Layout rows_of() const;     // of an mma layout
  Layout columns_of() const;  // likewise
  bool operator==(const Layout&) const = default;

  bool is_mma() const { return kind == Kind::kMma; }
  bool is_splat() const { return kind == Kind::kSplat; }
  bool is_bits() const { return kind == Kind::kBits; }
  // Made for an instruction, not dealt.
  bool is_special() const { return kind >= Kind::kMma; }
  int64_t elements() const;
  int registers() const;
  // Registers 0 … n-1, n … 2n-1 and so on hold neighbours of a row. Of bits only.
  int neighbours() const;
  // Fragments that one warp holds.
  int fragments_m() const;
  int fragments_n() const;
  // Row-major element number, or -1 where the register holds nothing.
  int64_t element_of(int thread, int reg) const;
  // False: another thread with a smaller number (or register) holds a copy.
  bool is_first_copy(int thread, int reg) const;
  // The bits of the thread's number, then those of the register's, onto those of the element's.
  // Nothing for splats, where sizes or threads are no powers of two, or some registers hold
  // nothing.
  std::optional<LinearMap> linear() const;
  bool is_linear() const;
  // True if both hold the same everywhere, whatever they are called. Of linear ones only.
  bool same_as(const Layout& other) const;
  std::string text() const;
};

// A layout for every tile of the kernel (uniform for the others). Products of 16-bit tiles make mma
// tiles; what is computed from these, or only for these, lies likewise.
std::vector<Layout> assign_layouts(const Kernel& kernel, int threads);

// True for a dot that runs on tensor cores.
bool is_tensor_core_dot(const Kernel& kernel, const Operation& op);

// Which operation made each value, null for arguments and parameters.
std::vector<const Operation*> definitions_of(const Kernel& kernel);

// Few columns are multiplied by mma.sync everywhere: the fences around a wgmma cost more than it.
inline constexpr int kFewColumns = 16;

// A dot on tensor cores whose right operand is a turned stage of a ring, [n, k], or where columns
// are few turned rows of scratch: what is read there needs no registers. The left one lies in
// registers, or in a stage [m, k] as well. Of groups, the right one may be computed: in registers.
// In tf32 both are stages, the right one turned.
struct RingDot {
  const Operation* right = nullptr;   // kRead, or kLoad from scratch, or null: registers
  const Operation* left = nullptr;    // kRead, or null: registers
  bool rows_are_k = false;            // the right one is no turned stage but one [k, n]
  const Operation* beside = nullptr;  // kRead: its right half is another stage of the same shape
};
// Where the columns of a stage begin that such a product reads.
int first_column(const std::vector<const Operation*>& definitions, const Operation& read);
std::optional<RingDot> ring_dot(const Kernel& kernel,
                                const std::vector<const Operation*>& definitions,
                                const Operation& op, int threads);

}  // namespace tenon::codegen
