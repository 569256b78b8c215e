// Skinny GEMMs: so few tokens that reading the weight is all that counts. A CTA takes few rows of
// the weight and all of K, which its warps share: so every SM has work, and the partial sums of the
// warps meet in shared memory instead of waiting for other CTAs.
//
// A stage holds `units` times `warp_split_k` steps of 64 k. Of each the CTA's rows are fetched, 16
// for a warp, and are dequantised as if they were one unit of 128 rows: group after group.
//
// The tokens come with the stages, or are read once into shared memory, where the CTA can also
// compute them (a norm): weights are on their way meanwhile, before the wait of PDL.
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
constexpr int kUnitsPerAccumulator = 4;  // whose blocks have the eight columns
// Of 64 k of a resident token: an odd number of 16-byte units, so that eight rows of a matrix
// lie in eight banks.
constexpr int kResidentPitch = kFragmentDepth + 8;

class Emitter {
 public:
  Emitter(const PipelinedDot& dot, const GemmConfig& config, Lowered& lowered)
      : dot_(dot),
        layout_(dot.layout),
        config_(config),
        writer_("skinny_gemm"),
        b_(writer_.builder),
        x_(declare_tokens(lowered)),
        w_(writer_.buffer("w", DType::kU32, dot.units)),
        side_words_(declare_sides()),
        end_(writer_, dot.graph, dot.dots, {config.tile_n, tile_m(), config.tile_n}, lowered),
        reader_(b_, layout_) {
    for (const Dim& dim : {dot.problem.rows, all_terms(), work(), tasks()}) writer_.declare(dim);
  }

  Launch run() {
    rows_ = writer_.index(dot_.problem.rows);
    for (int run = 0; run < layout_.code_runs(); ++run) {
      codes_.push_back(ring_of(kLanes * layout_.code_width()));
    }
    if (layout_.shares_scales()) {
      scale_ = b_.ring(DType::kU32, {steps_of_stage(), layout_.scale.words()}, config_.stages);
    } else if (layout_.scale.words() > 0 && !layout_.sides_apart) {
      scale_ = ring_of(layout_.scale.words_of_warp());
    }
    if (layout_.zero.words() > 0 && !layout_.sides_apart)
      zero_ = ring_of(layout_.zero.words_of_warp());
    const int boxes = config_.resident_x ? 0 : config_.units * layout_.row_terms;
    for (int box = 0; box < boxes; ++box) {
      x_rings_.push_back(b_.ring(layout_.operand, token_shape(), config_.stages));
    }
    partials_ = b_.alloc(DType::kF32, int64_t{kFragmentRows} * partial_pitch());
    if (config_.resident_x) make_x_resident();
    if (layout_.sides_apart) {
      sides_.emplace(b_, layout_, side_words_, config_.units, config_.warp_split_k);
    }
    end_.begin();
    b_.loop({b_.task(), writer_.index(work()), writer_.index(tasks())}, {},
            [&](ValueId item, std::span<const ValueId>) {
              emit_item(item);
              return std::vector<ValueId>{};
            });
    Launch launch = writer_.finish(tasks(), 1000);
    launch.threads = kFragmentThreads;
    // Where its memory keeps a third CTA off, its registers need not leave room for one.
    if (config_.shared_bytes > 0) launch.kernel.ctas_per_sm = config_.ctas_per_sm;
    return launch;
  }

 private:
  int tile_m() const { return config_.tile_m(); }
  int warps_of_group() const { return tile_m() / kWarpRows; }
  int columns() const { return std::max(config_.tile_n, kFewestColumns); }  // of the accumulators
  bool accumulates_per_block() const { return config_.accumulates_per_block(layout_); }
  // Codes are multiplied with what stands beside them, and it is taken from the accumulators of
  // each block.
  bool takes_offsets() const {
    return accumulates_per_block() && config_.units % kUnitsPerAccumulator == 0 &&
           layout_.accumulator_parts() == 1 && layout_.row_offsets() != std::array<double, 2>{};
  }
  int partial_columns() const { return accumulates_per_block() ? 1 : columns(); }
  // Lanes that add up have neighbouring rows: eight or sixteen columns and two more put 16 rows of
  // two tokens into 32 banks.
  int partial_pitch() const { return accumulates_per_block() ? 1 : columns() + 2; }
  int steps_of_stage() const { return config_.units * config_.warp_split_k; }
  // Of 64 k for each group.
  std::vector<int> token_shape() const {
    return {config_.warp_split_k * config_.tile_n, kFragmentDepth};
  }
  Dim all_terms() const { return dot_.problem.rows * Dim(layout_.row_terms); }
  int64_t row_tiles() const { return (layout_.n + tile_m() - 1) / tile_m(); }
  Dim work() const { return ceil_div(dot_.problem.rows, Dim(config_.tile_n)) * Dim(row_tiles()); }
  Dim tasks() const { return min(work(), Dim(dot_.sm_count * config_.ctas_per_sm)); }

  ValueId declare_tokens(Lowered& lowered) {
    if (dot_.prologue != nullptr && config_.resident_x) {
      prologue_.emplace(dot_.prologue->declare(writer_, lowered));
      return kNone;
    }
    if (!config_.resident_x) return writer_.buffer("x", layout_.operand, dot_.terms);
    return writer_.buffer("x", dot_.problem.a_type, BufferArgument::value(dot_.problem.dot.a));
  }

  ValueId declare_sides() {
    return layout_.sides_apart ? writer_.buffer("sides", DType::kU32, dot_.dots.sides) : kNone;
  }

  // All tokens, as [k / 64][token][64]: kernels with resident x have one tile of tokens.
  void make_x_resident() {
    for (int term = 0; term < layout_.row_terms; ++term) {
      resident_.push_back(
          b_.alloc(layout_.operand, layout_.steps() * config_.tile_n * kResidentPitch));
    }
    // Zeros behind each row, which other columns' blocks are multiplied with.
    if (accumulates_per_block()) {
      b_.store(
          {{resident_[0], b_.index(kFragmentDepth), {b_.index(kResidentPitch), b_.index(1)}, {}},
           b_.constant(layout_.operand, 0,
                       {static_cast<int>(layout_.steps()), kResidentPitch - kFragmentDepth})});
    }
    if (takes_offsets()) block_sums_ = b_.alloc(DType::kF32, layout_.steps() * 2);
    if (config_.tile_n == 1) return make_token_resident(b_.index(0));
    const ValueId last = b_.min(rows_, b_.index(config_.tile_n));
    b_.loop({b_.index(0), last, b_.index(1)}, {}, [&](ValueId token, std::span<const ValueId>) {
      make_token_resident(token);
      return std::vector<ValueId>{};
    });
  }

  void make_token_resident(ValueId token) {
    const Tile row = prologue_ ? prologue_->emit(token) : load_token(token);
    const int lines = b_.type(row).shape[0] / kFragmentDepth;
    const std::vector<Tile> terms =
        layout_.row_terms == 1 ? std::vector<Tile>{row} : split_bf16(b_, row, layout_.row_terms);
    for (size_t term = 0; term < terms.size(); ++term) {
      b_.store({{resident_[term],
                 b_.mul(token, b_.index(kResidentPitch)),
                 {b_.index(config_.tile_n * kResidentPitch), b_.index(1)},
                 {lines == layout_.steps() ? kNone : b_.index(layout_.steps()), kNone}},
                b_.reshape(terms[term], {lines, kFragmentDepth})});
    }
    if (takes_offsets()) store_block_sums(row);
  }

  // As they follow each other: of a step [unit][group][block].
  void store_block_sums(Tile row) {
    const int block = layout_.accumulated_block(), count = b_.type(row).shape[0] / block;
    const Tile blocks = b_.reshape(b_.cast(row, DType::kF32), {count, block});
    b_.store({{block_sums_, b_.index(0), {}, {b_.index(layout_.steps() * 2)}},
              b_.reduce(Fn::kAdd, blocks, 1)});
  }

  // What the accumulators of four units begin with, [128, 8]: less the offsets times the blocks of
  // x.
  Tile taken_offsets(ValueId step, int unit) {
    const int of_unit = 2 * config_.warp_split_k, count = kUnitsPerAccumulator * of_unit,
              rows = tile_m();
    const ValueId first = b_.add({b_.mul(step, b_.index(int64_t{config_.units} * of_unit)),
                                  b_.index(int64_t{unit} * of_unit)});
    const Tile sums = b_.broadcast(b_.load({block_sums_, first}, {count, 1}), {count, rows});
    // From (unit, group, block, row) to (group, row, unit, block).
    const int row_bits = std::countr_zero(static_cast<unsigned>(rows));
    const int units = row_bits + 1 + std::countr_zero(static_cast<unsigned>(config_.warp_split_k));
    std::vector<int64_t> order = {row_bits, units, units + 1};
    for (int bit = 0; bit < row_bits; ++bit) order.push_back(bit);
    for (int bit = row_bits + 1; bit < units; ++bit) order.push_back(bit);
    const std::vector<int> shape = {kFragmentRows, kFewestColumns};
    const Tile half = b_.binary(Fn::kAnd, {b_.iota(DType::kI32, shape, 0),
                                           b_.integer_constant(DType::kI32, kWarpRows / 2, shape)});
    const Tile is_first = b_.compare(Fn::kEqual, half, b_.integer_constant(DType::kI32, 0, shape));
    const auto [upper, lower] = layout_.row_offsets();
    const Tile offsets = b_.select({is_first, b_.constant(DType::kF32, -upper, shape),
                                    b_.constant(DType::kF32, -lower, shape)});
    return b_.mul(b_.permute(sums, std::move(order), shape), offsets);
  }

  Tile load_token(ValueId token) {
    return b_.load({x_, b_.mul(token, b_.index(layout_.k))}, {static_cast<int>(layout_.k)});
  }

  // Of the groups' 64 k in one unit of a stage, or of one block of each.
  Tile tokens(ValueId step, ValueId stage, int unit, int term = 0, int block = 0) {
    const int rows = config_.warp_split_k * config_.tile_n, depth = layout_.k_per_accumulator();
    if (!config_.resident_x) {
      return read_block(b_, x_ring(unit, term), stage, rows, layout_, block);
    }
    return resident_tokens(step, unit, block * depth, depth, term);
  }

  // `depth` k of each group's 64 in one unit of a stage, from `first` on.
  Tile resident_tokens(ValueId step, int unit, int first, int depth, int term = 0) {
    const int rows = config_.warp_split_k * config_.tile_n;
    const int64_t size = int64_t{rows} * kResidentPitch;
    const ValueId at =
        b_.add({b_.mul(step, b_.index(config_.units * size)), b_.index(unit * size + first)});
    return b_.load(
        {resident_[static_cast<size_t>(term)], at, {b_.index(kResidentPitch), b_.index(1)}, {}},
        {rows, depth});
  }

  // Words that a warp has of a step: in a stage [unit][group][warp][words].
  ValueId ring_of(int words) {
    return b_.ring(DType::kU32, {steps_of_stage(), warps_of_group() * words}, config_.stages);
  }

  // The steps' pieces of one kind, whose words begin at `first` in a unit, `words` for a warp.
  void fetch_pieces(ValueId ring, ValueId stage, ValueId unit, ValueId warp, int64_t first,
                    int words) {
    const ValueId units = b_.index(layout_.row_units() * layout_.steps());
    const ValueId width = b_.index(layout_.unit_words());
    const ValueId column = b_.add({b_.index(first), b_.mul(warp, b_.index(words))});
    b_.tma_load(ring, stage, {w_, units, width, width}, unit, column);
  }

  // Which rows of which row unit a tile has.
  ApartSides::Rows rows_of(ValueId tile) {
    const ValueId row = b_.mul(tile, b_.index(tile_m()));
    return {b_.div(row, b_.index(kFragmentRows)),
            b_.div({b_.rem(row, b_.index(kFragmentRows)), b_.index(kWarpRows)})};
  }

  void fetch_weight(ValueId tile, ValueId step, ValueId stage) {
    const auto [row_unit, warp] = rows_of(tile);
    const ValueId unit = b_.add(
        {b_.mul(row_unit, b_.index(layout_.steps())), b_.mul(step, b_.index(steps_of_stage()))});
    const int width = layout_.code_width();
    for (size_t run = 0; run < codes_.size(); ++run) {
      const int64_t first = static_cast<int64_t>(run) * kFragmentThreads * width;
      fetch_pieces(codes_[run], stage, unit, warp, first, kLanes * width);
    }
    const int64_t sides = layout_.code_words();
    if (scale_ != kNone) {
      fetch_pieces(scale_, stage, unit, warp, sides, layout_.scale.words_of_warp());
    }
    if (zero_ != kNone) {
      fetch_pieces(zero_, stage, unit, warp, sides + layout_.scale.words(),
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
    const int records = layout_.shares_scales() ? config_.warp_split_k : 1;  // of a unit
    places.scale = {scale_, int64_t{unit} * records * layout_.scale.words()};
    places.zero = {zero_, int64_t{unit} * layout_.zero.words()};
    return places;
  }

  ValueId x_ring(int unit, int term) const {
    return x_rings_[static_cast<size_t>(unit * layout_.row_terms + term)];
  }

  // In every group the products of one unit are of as many blocks.
  Tile add_product(Tile accumulators, ValueId step, ValueId stage, int unit,
                   std::span<const Tile> sides) {
    std::vector<std::vector<Tile>> right;  // by block
    for (int block = 0; block < layout_.accumulators_per_unit(); ++block) {
      right.emplace_back();
      for (int term = 0; term < layout_.row_terms; ++term) {
        right.back().push_back(tokens(step, stage, unit, term, block));
      }
    }
    const Tile left = reader_.operand(places(unit, sides), stage);
    if (!layout_.scales_blocks()) return multiply(accumulators, left, right[0]);
    const Tile zero = b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
    for (int block = 0; block < layout_.accumulators_per_unit(); ++block) {
      const Tile part =
          multiply(zero, reader_.operand_of_block(left, block), right[static_cast<size_t>(block)]);
      const Tile scales =
          reader_.block_scales(places(unit, sides), stage, block, columns(), config_.warp_split_k);
      accumulators = b_.fma(part, scales, accumulators);
    }
    return accumulators;
  }

  // Smallest terms first.
  Tile multiply(Tile accumulators, Tile left, std::span<const Tile> terms) {
    for (; !terms.empty(); terms = terms.first(terms.size() - 1)) {
      accumulators =
          b_.grouped_dot(accumulators, left, b_.transpose(terms.back()), config_.warp_split_k);
    }
    return accumulators;
  }

  // [128, partial_columns]: the partial sums of every group.
  Tile emit_partials(ValueId tile, ValueId token) {
    const Tile zero = b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
    // Two accumulators in turns: a product need not wait for the one before it.
    const bool two = config_.units > 1 && !accumulates_per_block();
    const size_t count = two ? 2 : 1;
    std::vector<Tile> initial(count, zero);
    std::vector<Tile> sides;
    if (sides_) {
      const ApartSides::Rows rows = rows_of(tile);
      sides = sides_->load(rows, b_.index(0));
    }
    const bool carries = sides_ && !sides_->is_constant();
    if (carries) initial.insert(initial.end(), sides.begin(), sides.end());
    const int64_t last = layout_.steps() / steps_of_stage();
    const ValueId begin = b_.index(0), end = b_.index(last);
    const std::vector<Tile> accumulators = b_.pipeline(
        config_.stages, begin, end, initial,
        [&](ValueId step, ValueId stage) {
          fetch_weight(tile, step, stage);
          if (!config_.resident_x) fetch_tokens(token, step, stage);
        },
        [&](ValueId step, ValueId stage, std::span<const ValueId> carried) {
          std::vector<Tile> accumulators(carried.begin(),
                                         carried.begin() + static_cast<int64_t>(count));
          if (accumulates_per_block()) return add_blocks(accumulators, step, stage);
          if (!carries) return add_units(accumulators, step, stage, sides);
          const ValueId next = b_.min({b_.add(step, b_.index(1)), b_.index(last - 1)});
          const std::vector<Tile> ahead = sides_->load(rows_of(tile), next);
          std::vector<Tile> out = add_units(accumulators, step, stage, carried.subspan(count));
          out.insert(out.end(), ahead.begin(), ahead.end());
          return out;
        });
    const Tile sum = two ? b_.add(accumulators[0], accumulators[1]) : accumulators[0];
    if (!accumulates_per_block()) return sum;
    return b_.reshape(b_.reduce(Fn::kAdd, sum, 1), {kFragmentRows, 1});
  }

  std::vector<Tile> add_units(std::vector<Tile> accumulators, ValueId step, ValueId stage,
                              std::span<const Tile> sides) {
    for (int unit = 0; unit < config_.units; ++unit) {
      Tile& sum = accumulators[static_cast<size_t>(unit) % accumulators.size()];
      sum = add_product(sum, step, stage, unit, sides);
    }
    return accumulators;
  }

  // Four units at once, two columns each: lane t of a row has the accumulators of unit t, whose
  // scales are one word. Units of four blocks have them in two parts.
  std::vector<Tile> add_blocks(std::vector<Tile> accumulators, ValueId step, ValueId stage) {
    const int together = std::min(kUnitsPerAccumulator, config_.units);
    const int parts = layout_.accumulator_parts(), depth = kFragmentDepth / parts;
    for (int unit = 0; unit < config_.units; unit += together) {
      const Tile first = takes_offsets() ? taken_offsets(step, unit)
                                         : b_.constant(DType::kF32, 0, {kFragmentRows, columns()});
      std::vector<Tile> blocks(static_cast<size_t>(parts), first);
      std::vector<FragmentPlaces> units;
      for (int u = 0; u < together; ++u) {
        units.push_back(places(unit + u));
        const Tile left = reader_.unscaled_operand(units.back(), stage, takes_offsets());
        for (int part = 0; part < parts; ++part) {
          const int begin = part * depth;
          const Tile own = parts == 1 ? left : b_.slice(left, {0, begin}, {kFragmentRows, depth});
          Tile& sum = blocks[static_cast<size_t>(part)];
          sum = b_.blockwise_dot(
              sum, own, b_.transpose(resident_tokens(step, unit + u, begin, depth)),
              config_.warp_split_k, {layout_.accumulated_block(), 2 * u, kFragmentDepth - begin});
        }
      }
      const std::vector<Tile> factors = reader_.block_factors(units, stage);
      for (size_t part = 0; part < factors.size(); ++part) {
        accumulators[0] = b_.fma(blocks[part], factors[part], accumulators[0]);
      }
    }
    return accumulators;
  }

  void fetch_tokens(ValueId token, ValueId step, ValueId stage) {
    const ValueId k = b_.index(layout_.k);
    const int depth = config_.warp_split_k * kFragmentDepth;
    const ValueId first = b_.mul(step, b_.index(config_.units * depth));
    const Builder::Matrix x{x_, writer_.index(all_terms()), k, k};
    for (int unit = 0; unit < config_.units; ++unit) {
      for (int term = 0; term < layout_.row_terms; ++term) {
        const ValueId row = b_.add(token, b_.mul(b_.index(term), rows_));
        b_.tma_load(x_ring(unit, term), stage, x, row, b_.add(first, b_.index(unit * depth)),
                    config_.warp_split_k);
      }
    }
  }

  void emit_item(ValueId item) {
    const ValueId tile = b_.rem(item, b_.index(row_tiles()));
    const ValueId token = b_.mul({b_.div(item, b_.index(row_tiles())), b_.index(config_.tile_n)});
    const ValueId row = b_.mul(tile, b_.index(tile_m()));
    end_.ask(token, row);
    const Tile partials = emit_partials(tile, token);
    if (!dot_.dots.is_pair()) {
      store_partials(partials);
      return end_.emit(token, row, total(0, tile_m()));
    }
    store_partials(pair_apart(partials));
    const int half = tile_m() / 2;
    const Tile upper = total(0, half), lower = total(half, half);
    end_.emit_pair(token, row, upper, lower);
  }

  void store_partials(Tile partials) {
    b_.store({partials_, b_.index(0), {b_.index(partial_pitch()), b_.index(1)}, {}}, partials);
  }

  // Of a pair's weights each has every second eight rows; in shared memory all of one come before
  // those of the other, group by group.
  Tile pair_apart(Tile partials) {
    const int columns_bits = std::countr_zero(static_cast<unsigned>(partial_columns()));
    const int block_bits = std::countr_zero(static_cast<unsigned>(tile_m()));
    const int pair = columns_bits + 3;
    std::vector<int64_t> order;
    for (int bit = 0; bit < columns_bits + 7; ++bit) {
      if (bit != pair) order.push_back(bit);
    }
    order.insert(order.begin() + columns_bits + block_bits - 1, pair);
    return b_.permute(partials, std::move(order), {kFragmentRows, partial_columns()});
  }

  // The accumulators of rows `first` and following ones over all groups: [tokens, rows].
  Tile total(int first, int rows) {
    Tile sum = kNone;
    for (int group = 0; group < config_.warp_split_k; ++group) {
      const ValueId at = b_.index((int64_t{group} * tile_m() + first) * partial_pitch());
      const Tile partial = b_.load({partials_, at, {b_.index(1), b_.index(partial_pitch())}, {}},
                                   {config_.tile_n, rows});
      sum = sum == kNone ? partial : b_.add(sum, partial);
    }
    if (!accumulates_per_block() || reader_.block_factor() == 1) return sum;
    return b_.mul(sum, b_.constant(DType::kF32, reader_.block_factor(), {config_.tile_n, rows}));
  }

  const PipelinedDot& dot_;
  const FragmentLayout& layout_;
  const GemmConfig& config_;
  LaunchWriter writer_;
  Builder& b_;
  std::optional<LoopRow> prologue_;
  ValueId x_, w_, side_words_;
  ProductEnd end_;
  FragmentReader reader_;
  std::optional<ApartSides> sides_;
  ValueId rows_ = kNone, partials_ = kNone, scale_ = kNone, zero_ = kNone, block_sums_ = kNone;
  std::vector<ValueId> codes_, x_rings_, resident_;
};

}  // namespace

Launch PipelinedDot::emit_skinny(const GemmConfig& config, Lowered& lowered) const {
  return Emitter(*this, config, lowered).run();
}

}  // namespace tenon::kernels
