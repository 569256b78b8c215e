// Products with so few tokens that reading the weight is all that counts. A block takes few rows of
// the weight and all of k, which its warps share: so every multiprocessor has work, and the sums of
// the warps meet in shared memory instead of waiting for other blocks.
//
// A slot holds `units` times `groups` steps of 64 k. Of each the block's rows are fetched, 16 for a
// warp, and are decoded as if they were one unit of 128 rows: group after group.
//
// The tokens come with the slots, or are read once into shared memory, where the block can also
// compute them (a norm): weights are on their way meanwhile, before the launch before has ended.
#include <array>
#include <bit>
#include <optional>

#include "kernels/llvm/scaled_dot/apart_sides.h"
#include "kernels/llvm/scaled_dot/pipelined_dot.h"
#include "kernels/llvm/scaled_dot/product_end.h"
#include "kernels/llvm/split_parts.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int kWarpRows = 16, kFewestColumns = 8;  // of the matrix instruction
constexpr int kLanes = 32;
constexpr int kUnitsOfSums = 4;  // whose blocks have the eight columns
// Of 64 k of a token that is kept: an odd number of 16-byte units, so that eight rows of a matrix
// lie in eight banks.
constexpr int kKeptPitch = kFragmentDepth + 8;

class Emitter {
 public:
  Emitter(const PipelinedDot& dot, const PipelinedShape& shape, Lowered& lowered)
      : dot_(dot),
        layout_(dot.layout),
        shape_(shape),
        writer_("few_token_dot"),
        b_(writer_.builder),
        x_(declare_tokens(lowered)),
        w_(writer_.buffer("w", DType::kU32, dot.units)),
        side_words_(declare_sides()),
        end_(writer_, dot.graph, dot.dots, {shape.tokens, block_rows(), shape.tokens}, lowered),
        reader_(b_, layout_) {
    for (const Dim& dim : {dot.problem.rows, all_terms(), work(), tasks()}) writer_.declare(dim);
  }

  Launch run() {
    rows_ = writer_.index(dot_.problem.rows);
    for (int run = 0; run < layout_.code_runs(); ++run) {
      codes_.push_back(ring_of(kLanes * layout_.code_width()));
    }
    if (layout_.shares_scales()) {
      scale_ = b_.ring(DType::kU32, {steps_of_slot(), layout_.scale.words()}, shape_.slots);
    } else if (layout_.scale.words() > 0 && !layout_.sides_apart) {
      scale_ = ring_of(layout_.scale.words_of_warp());
    }
    if (layout_.zero.words() > 0 && !layout_.sides_apart)
      zero_ = ring_of(layout_.zero.words_of_warp());
    const int boxes = shape_.keeps_tokens ? 0 : shape_.units * layout_.row_terms;
    for (int box = 0; box < boxes; ++box) {
      x_rings_.push_back(b_.ring(layout_.operand, token_shape(), shape_.slots));
    }
    shares_ = b_.alloc(DType::kF32, int64_t{kFragmentRows} * share_pitch());
    if (shape_.keeps_tokens) keep_tokens();
    if (layout_.sides_apart) {
      sides_.emplace(b_, layout_, side_words_, shape_.units, shape_.groups);
    }
    end_.begin();
    b_.loop(b_.task(), writer_.index(work()), writer_.index(tasks()), {},
            [&](ValueId item, std::span<const ValueId>) {
              emit_item(item);
              return std::vector<ValueId>{};
            });
    Launch launch = writer_.finish(tasks(), 1000);
    launch.threads = kFragmentThreads;
    // Where its memory keeps a third block off, its registers need not leave room for one.
    if (shape_.shared_bytes > 0) launch.kernel.resident = shape_.blocks;
    return launch;
  }

 private:
  int block_rows() const { return kFragmentRows / shape_.groups; }
  int warps_of_group() const { return block_rows() / kWarpRows; }
  int columns() const { return std::max(shape_.tokens, kFewestColumns); }  // of the sums
  bool sums_blocks() const { return shape_.sums_blocks(layout_); }
  // Codes are multiplied with what stands beside them, and it is taken from the sums of each block.
  bool takes_offsets() const {
    return sums_blocks() && shape_.units % kUnitsOfSums == 0 && layout_.sum_parts() == 1 &&
           layout_.row_offsets() != std::array<double, 2>{};
  }
  int share_columns() const { return sums_blocks() ? 1 : columns(); }
  // Lanes that add up have neighbouring rows: eight or sixteen columns and two more put 16 rows of
  // two tokens into 32 banks.
  int share_pitch() const { return sums_blocks() ? 1 : columns() + 2; }
  int steps_of_slot() const { return shape_.units * shape_.groups; }
  // Of 64 k for each group.
  std::vector<int> token_shape() const { return {shape_.groups * shape_.tokens, kFragmentDepth}; }
  Dim all_terms() const { return dot_.problem.rows * Dim(layout_.row_terms); }
  int64_t row_tiles() const { return (layout_.n + block_rows() - 1) / block_rows(); }
  Dim work() const { return ceil_div(dot_.problem.rows, Dim(shape_.tokens)) * Dim(row_tiles()); }
  Dim tasks() const { return min(work(), Dim(dot_.multiprocessors * shape_.blocks)); }

  ValueId declare_tokens(Lowered& lowered) {
    if (dot_.prologue != nullptr && shape_.keeps_tokens) {
      prologue_.emplace(dot_.prologue->declare(writer_, lowered));
      return kNone;
    }
    if (!shape_.keeps_tokens) return writer_.buffer("x", layout_.operand, dot_.terms);
    return writer_.buffer("x", dot_.problem.a_type, BufferArgument::value(dot_.problem.dot.a));
  }

  ValueId declare_sides() {
    return layout_.sides_apart ? writer_.buffer("sides", DType::kU32, dot_.dots.sides) : kNone;
  }

  // All tokens, as [k / 64][token][64]: the kernels that keep them have one tile of tokens.
  void keep_tokens() {
    for (int term = 0; term < layout_.row_terms; ++term) {
      kept_.push_back(b_.alloc(layout_.operand, layout_.steps() * shape_.tokens * kKeptPitch));
    }
    if (sums_blocks()) {  // zeros behind each row, which other columns' blocks are multiplied with
      b_.store({kept_[0], b_.index(kFragmentDepth), {b_.index(kKeptPitch), b_.index(1)}, {}},
               b_.constant(layout_.operand, 0,
                           {static_cast<int>(layout_.steps()), kKeptPitch - kFragmentDepth}));
    }
    if (takes_offsets()) block_sums_ = b_.alloc(DType::kF32, layout_.steps() * 2);
    if (shape_.tokens == 1) return keep_token(b_.index(0));
    const ValueId last = b_.min(rows_, b_.index(shape_.tokens));
    b_.loop(b_.index(0), last, b_.index(1), {}, [&](ValueId token, std::span<const ValueId>) {
      keep_token(token);
      return std::vector<ValueId>{};
    });
  }

  void keep_token(ValueId token) {
    const Tile row = prologue_ ? prologue_->emit(token) : load_token(token);
    const int lines = b_.type(row).shape[0] / kFragmentDepth;
    const std::vector<Tile> terms =
        layout_.row_terms == 1 ? std::vector<Tile>{row} : split_bf16(b_, row, layout_.row_terms);
    for (size_t term = 0; term < terms.size(); ++term) {
      b_.store({kept_[term],
                b_.mul(token, b_.index(kKeptPitch)),
                {b_.index(shape_.tokens * kKeptPitch), b_.index(1)},
                {lines == layout_.steps() ? kNone : b_.index(layout_.steps()), kNone}},
               b_.reshape(terms[term], {lines, kFragmentDepth}));
    }
    if (takes_offsets()) keep_block_sums(row);
  }

  // As they follow each other: of a step [unit][group][block].
  void keep_block_sums(Tile row) {
    const int block = layout_.summed_block(), count = b_.type(row).shape[0] / block;
    const Tile blocks = b_.reshape(b_.cast(row, DType::kF32), {count, block});
    b_.store({block_sums_, b_.index(0), {}, {b_.index(layout_.steps() * 2)}},
             b_.reduce(Fn::kAdd, blocks, 1));
  }

  // What the sums of four units begin with, [128, 8]: less the offsets times the blocks of x.
  Tile taken_offsets(ValueId step, int unit) {
    const int of_unit = 2 * shape_.groups, count = kUnitsOfSums * of_unit, rows = block_rows();
    const ValueId first = b_.add(b_.mul(step, b_.index(int64_t{shape_.units} * of_unit)),
                                 b_.index(int64_t{unit} * of_unit));
    const Tile sums = b_.broadcast(b_.load({block_sums_, first}, {count, 1}), {count, rows});
    // From (unit, group, block, row) to (group, row, unit, block).
    const int row_bits = std::countr_zero(static_cast<unsigned>(rows));
    const int units = row_bits + 1 + std::countr_zero(static_cast<unsigned>(shape_.groups));
    std::vector<int64_t> order = {row_bits, units, units + 1};
    for (int bit = 0; bit < row_bits; ++bit) order.push_back(bit);
    for (int bit = row_bits + 1; bit < units; ++bit) order.push_back(bit);
    const std::vector<int> shape = {kFragmentRows, kFewestColumns};
    const Tile half = b_.binary(Fn::kAnd, b_.iota(DType::kI32, shape, 0),
                                b_.integer_constant(DType::kI32, kWarpRows / 2, shape));
    const Tile is_first = b_.compare(Fn::kEqual, half, b_.integer_constant(DType::kI32, 0, shape));
    const auto [upper, lower] = layout_.row_offsets();
    const Tile offsets = b_.select(is_first, b_.constant(DType::kF32, -upper, shape),
                                   b_.constant(DType::kF32, -lower, shape));
    return b_.mul(b_.permute(sums, std::move(order), shape), offsets);
  }

  Tile load_token(ValueId token) {
    return b_.load({x_, b_.mul(token, b_.index(layout_.k))}, {static_cast<int>(layout_.k)});
  }

  // Of the groups' 64 k in one unit of a slot, or of one block of each.
  Tile tokens(ValueId step, ValueId slot, int unit, int term = 0, int block = 0) {
    const int rows = shape_.groups * shape_.tokens, depth = layout_.depth_of_sum();
    if (!shape_.keeps_tokens) {
      return read_block(b_, x_ring(unit, term), slot, rows, layout_, block);
    }
    return kept_tokens(step, unit, block * depth, depth, term);
  }

  // `depth` k of each group's 64 in one unit of a slot, from `first` on.
  Tile kept_tokens(ValueId step, int unit, int first, int depth, int term = 0) {
    const int rows = shape_.groups * shape_.tokens;
    const int64_t size = int64_t{rows} * kKeptPitch;
    const ValueId at =
        b_.add(b_.mul(step, b_.index(shape_.units * size)), b_.index(unit * size + first));
    return b_.load({kept_[static_cast<size_t>(term)], at, {b_.index(kKeptPitch), b_.index(1)}, {}},
                   {rows, depth});
  }

  // Words that a warp has of a step: in a slot [unit][group][warp][words].
  ValueId ring_of(int words) {
    return b_.ring(DType::kU32, {steps_of_slot(), warps_of_group() * words}, shape_.slots);
  }

  // The steps' pieces of one kind, whose words begin at `first` in a unit, `words` for a warp.
  void fetch_pieces(ValueId ring, ValueId slot, ValueId unit, ValueId warp, int64_t first,
                    int words) {
    const ValueId units = b_.index(layout_.row_units() * layout_.steps());
    const ValueId width = b_.index(layout_.unit_words());
    const ValueId column = b_.add(b_.index(first), b_.mul(warp, b_.index(words)));
    b_.fetch_box(ring, slot, {w_, units, width, width}, unit, column);
  }

  // Which rows of which row unit a tile has.
  ApartSides::Rows rows_of(ValueId tile) {
    const ValueId row = b_.mul(tile, b_.index(block_rows()));
    return {b_.div(row, b_.index(kFragmentRows)),
            b_.div(b_.rem(row, b_.index(kFragmentRows)), b_.index(kWarpRows))};
  }

  void fetch_weight(ValueId tile, ValueId step, ValueId slot) {
    const auto [row_unit, warp] = rows_of(tile);
    const ValueId unit = b_.add(b_.mul(row_unit, b_.index(layout_.steps())),
                                b_.mul(step, b_.index(steps_of_slot())));
    const int width = layout_.code_width();
    for (size_t run = 0; run < codes_.size(); ++run) {
      const int64_t first = static_cast<int64_t>(run) * kFragmentThreads * width;
      fetch_pieces(codes_[run], slot, unit, warp, first, kLanes * width);
    }
    const int64_t sides = layout_.code_words();
    if (scale_ != kNone) {
      fetch_pieces(scale_, slot, unit, warp, sides, layout_.scale.words_of_warp());
    }
    if (zero_ != kNone) {
      fetch_pieces(zero_, slot, unit, warp, sides + layout_.scale.words(),
                   layout_.zero.words_of_warp());
    }
  }

  FragmentPlaces places(int unit, std::span<const Tile> sides = {}) const {
    FragmentPlaces places;
    if (sides_) sides_->place(sides, unit, places);
    for (ValueId codes : codes_) {
      places.codes.push_back({codes, int64_t{unit} * kFragmentThreads * layout_.code_width()});
    }
    if (sides_) return places;
    const int records = layout_.shares_scales() ? shape_.groups : 1;  // of a unit
    places.scale = {scale_, int64_t{unit} * records * layout_.scale.words()};
    places.zero = {zero_, int64_t{unit} * layout_.zero.words()};
    return places;
  }

  ValueId x_ring(int unit, int term) const {
    return x_rings_[static_cast<size_t>(unit * layout_.row_terms + term)];
  }

  // In every group the products of one unit are of as many blocks.
  Tile add_product(Tile sums, ValueId step, ValueId slot, int unit, std::span<const Tile> sides) {
    std::vector<std::vector<Tile>> right;  // by block
    for (int block = 0; block < layout_.sums_of_unit(); ++block) {
      right.emplace_back();
      for (int term = 0; term < layout_.row_terms; ++term) {
        right.back().push_back(tokens(step, slot, unit, term, block));
      }
    }
    const Tile left = reader_.operand(places(unit, sides), slot);
    if (!layout_.scales_blocks()) return multiply(sums, left, right[0]);
    const Tile zero = b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
    for (int block = 0; block < layout_.sums_of_unit(); ++block) {
      const Tile part =
          multiply(zero, reader_.operand_of_block(left, block), right[static_cast<size_t>(block)]);
      const Tile scales =
          reader_.block_scales(places(unit, sides), slot, block, columns(), shape_.groups);
      sums = b_.fma(part, scales, sums);
    }
    return sums;
  }

  // Smallest terms first.
  Tile multiply(Tile sums, Tile left, std::span<const Tile> terms) {
    for (; !terms.empty(); terms = terms.first(terms.size() - 1)) {
      sums = b_.grouped_dot(sums, left, b_.transpose(terms.back()), shape_.groups);
    }
    return sums;
  }

  // [128, share_columns]: the share of every group.
  Tile emit_shares(ValueId tile, ValueId token) {
    const Tile zero = b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
    // Two sums in turns: a product need not wait for the one before it.
    const bool two = shape_.units > 1 && !sums_blocks();
    const size_t count = two ? 2 : 1;
    std::vector<Tile> initial(count, zero);
    const std::vector<Tile> sides =
        sides_ ? sides_->load(rows_of(tile), b_.index(0)) : std::vector<Tile>{};
    const bool carries = sides_ && !sides_->is_constant();
    if (carries) initial.insert(initial.end(), sides.begin(), sides.end());
    const int64_t last = layout_.steps() / steps_of_slot();
    const std::vector<Tile> sums = b_.pipeline(
        shape_.slots, b_.index(0), b_.index(last), initial,
        [&](ValueId step, ValueId slot) {
          fetch_weight(tile, step, slot);
          if (!shape_.keeps_tokens) fetch_tokens(token, step, slot);
        },
        [&](ValueId step, ValueId slot, std::span<const ValueId> carried) {
          std::vector<Tile> sums(carried.begin(), carried.begin() + static_cast<int64_t>(count));
          if (sums_blocks()) return add_blocks(sums, step, slot);
          if (!carries) return add_units(sums, step, slot, sides);
          const ValueId next = b_.min(b_.add(step, b_.index(1)), b_.index(last - 1));
          const std::vector<Tile> ahead = sides_->load(rows_of(tile), next);
          std::vector<Tile> out = add_units(sums, step, slot, carried.subspan(count));
          out.insert(out.end(), ahead.begin(), ahead.end());
          return out;
        });
    const Tile sum = two ? b_.add(sums[0], sums[1]) : sums[0];
    if (!sums_blocks()) return sum;
    return b_.reshape(b_.reduce(Fn::kAdd, sum, 1), {kFragmentRows, 1});
  }

  std::vector<Tile> add_units(std::vector<Tile> sums, ValueId step, ValueId slot,
                              std::span<const Tile> sides) {
    for (int unit = 0; unit < shape_.units; ++unit) {
      Tile& sum = sums[static_cast<size_t>(unit) % sums.size()];
      sum = add_product(sum, step, slot, unit, sides);
    }
    return sums;
  }

  // Four units at once, two columns each: lane t of a row has the sums of unit t, whose scales are
  // one word. Units of four blocks have them in two parts.
  std::vector<Tile> add_blocks(std::vector<Tile> sums, ValueId step, ValueId slot) {
    const int together = std::min(kUnitsOfSums, shape_.units);
    const int parts = layout_.sum_parts(), depth = kFragmentDepth / parts;
    for (int unit = 0; unit < shape_.units; unit += together) {
      const Tile first = takes_offsets() ? taken_offsets(step, unit)
                                         : b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
      std::vector<Tile> blocks(static_cast<size_t>(parts), first);
      std::vector<FragmentPlaces> units;
      for (int u = 0; u < together; ++u) {
        units.push_back(places(unit + u));
        const Tile left = reader_.unscaled_operand(units.back(), slot, takes_offsets());
        for (int part = 0; part < parts; ++part) {
          const int begin = part * depth;
          const Tile own = parts == 1 ? left : b_.slice(left, {0, begin}, {kFragmentRows, depth});
          Tile& sum = blocks[static_cast<size_t>(part)];
          sum = b_.blockwise_dot(sum, own, b_.transpose(kept_tokens(step, unit + u, begin, depth)),
                                 shape_.groups,
                                 {layout_.summed_block(), 2 * u, kFragmentDepth - begin});
        }
      }
      const std::vector<Tile> factors = reader_.block_factors(units, slot);
      for (size_t part = 0; part < factors.size(); ++part) {
        sums[0] = b_.fma(blocks[part], factors[part], sums[0]);
      }
    }
    return sums;
  }

  void fetch_tokens(ValueId token, ValueId step, ValueId slot) {
    const ValueId k = b_.index(layout_.k);
    const int depth = shape_.groups * kFragmentDepth;
    const ValueId first = b_.mul(step, b_.index(shape_.units * depth));
    const Builder::Matrix x{x_, writer_.index(all_terms()), k, k};
    for (int unit = 0; unit < shape_.units; ++unit) {
      for (int term = 0; term < layout_.row_terms; ++term) {
        b_.fetch_box(x_ring(unit, term), slot, x, b_.add(token, b_.mul(b_.index(term), rows_)),
                     b_.add(first, b_.index(unit * depth)), shape_.groups);
      }
    }
  }

  void emit_item(ValueId item) {
    const ValueId tile = b_.rem(item, b_.index(row_tiles()));
    const ValueId token = b_.mul(b_.div(item, b_.index(row_tiles())), b_.index(shape_.tokens));
    const ValueId row = b_.mul(tile, b_.index(block_rows()));
    end_.ask(token, row);
    const Tile shares = emit_shares(tile, token);
    if (!dot_.dots.is_pair()) {
      store_shares(shares);
      return end_.emit(token, row, total(0, block_rows()));
    }
    store_shares(pair_apart(shares));
    const int half = block_rows() / 2;
    end_.emit_pair(token, row, total(0, half), total(half, half));
  }

  void store_shares(Tile shares) {
    b_.store({shares_, b_.index(0), {b_.index(share_pitch()), b_.index(1)}, {}}, shares);
  }

  // Of a pair's weights each has every second eight rows; in shared memory all of one come before
  // those of the other, group by group.
  Tile pair_apart(Tile shares) {
    const int columns_bits = std::countr_zero(static_cast<unsigned>(share_columns()));
    const int block_bits = std::countr_zero(static_cast<unsigned>(block_rows()));
    const int pair = columns_bits + 3;
    std::vector<int64_t> order;
    for (int bit = 0; bit < columns_bits + 7; ++bit) {
      if (bit != pair) order.push_back(bit);
    }
    order.insert(order.begin() + columns_bits + block_bits - 1, pair);
    return b_.permute(shares, std::move(order), {kFragmentRows, share_columns()});
  }

  // The sums of rows `first` and following ones over all groups: [tokens, rows].
  Tile total(int first, int rows) {
    Tile sum = kNone;
    for (int group = 0; group < shape_.groups; ++group) {
      const ValueId at = b_.index((int64_t{group} * block_rows() + first) * share_pitch());
      const Tile share =
          b_.load({shares_, at, {b_.index(1), b_.index(share_pitch())}, {}}, {shape_.tokens, rows});
      sum = sum == kNone ? share : b_.add(sum, share);
    }
    if (!sums_blocks() || reader_.block_factor() == 1) return sum;
    return b_.mul(sum, b_.constant(DType::kF32, reader_.block_factor(), {shape_.tokens, rows}));
  }

  const PipelinedDot& dot_;
  const FragmentLayout& layout_;
  const PipelinedShape& shape_;
  LaunchWriter writer_;
  Builder& b_;
  std::optional<LoopRow> prologue_;
  ValueId x_, w_, side_words_;
  ProductEnd end_;
  FragmentReader reader_;
  std::optional<ApartSides> sides_;
  ValueId rows_ = kNone, shares_ = kNone, scale_ = kNone, zero_ = kNone, block_sums_ = kNone;
  std::vector<ValueId> codes_, x_rings_, kept_;
};

}  // namespace

Launch PipelinedDot::emit_few_tokens(const PipelinedShape& shape, Lowered& lowered) const {
  return Emitter(*this, shape, lowered).run();
}

}  // namespace tenon::kernels
