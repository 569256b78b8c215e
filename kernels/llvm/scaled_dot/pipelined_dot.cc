#include "kernels/llvm/scaled_dot/pipelined_dot.h"

#include <optional>

#include "kernels/llvm/scaled_dot/apart_sides.h"
#include "kernels/llvm/scaled_dot/product_end.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::kNone;
using codegen::ValueId;

// Tiles of the weight that run at the same time share the tokens that they read.
constexpr int64_t kRowGroup = 32;
// Tokens whose accumulators go through the epilogue at once: what it loads must fit beside them
// all, and what the functions of a body need in between.
constexpr int kEpilogueTokens = 32, kBodyTokens = 16;

class Emitter {
 public:
  Emitter(const PipelinedDot& dot, const GemmConfig& config, const Dim& rows, Lowered& lowered)
      : dot_(dot),
        layout_(dot.layout),
        config_(config),
        writer_("pipelined_dot"),
        b_(writer_.builder),
        x_(writer_.buffer("x", layout_.operand, dot.terms)),
        w_(writer_.buffer("w", layout_.is_plain() ? layout_.operand : DType::kU32, dot.units)),
        side_words_(declare_sides()),
        partial_(declare_partial(rows, lowered)),
        counters_(declare_counters(rows, lowered)),
        end_(writer_, dot.graph, dot.dots, {chunk(), kFragmentRows, config.tile_n}, lowered),
        reader_(b_, layout_) {
    for (const Dim& dim : {dot.problem.rows, all_terms(), token_tiles(), work(), tasks()}) {
      writer_.declare(dim);
    }
  }

  Launch run() {
    rows_ = writer_.index(dot_.problem.rows);
    if (!layout_.is_plain()) {
      w_rings_ = {b_.ring(DType::kU32, {layout_.unit_words() * config_.units}, config_.stages)};
    }
    for (int unit = 0; unit < config_.units; ++unit) {
      if (layout_.is_plain()) {
        w_rings_.push_back(b_.ring(layout_.operand, {kFragmentRows, depth()}, config_.stages));
      }
      for (int term = 0; term < layout_.row_terms; ++term) {
        x_rings_.push_back(b_.ring(layout_.operand, {config_.tile_n, depth()}, config_.stages));
      }
    }
    if (layout_.sides_apart) sides_.emplace(b_, layout_, side_words_, config_.units);
    end_.begin();
    b_.loop({b_.task(), writer_.index(work()), writer_.index(tasks())}, {},
            [&](ValueId item, std::span<const ValueId>) {
              emit_item(item);
              return std::vector<ValueId>{};
            });
    Launch launch = writer_.finish(tasks(), 1000);
    launch.threads = kFragmentThreads;
    return launch;
  }

 private:
  int chunk() const {
    return std::min(config_.tile_n, dot_.dots.has_bodies() ? kBodyTokens : kEpilogueTokens);
  }
  Dim all_terms() const { return dot_.problem.rows * Dim(layout_.row_terms); }
  Dim token_tiles() const { return ceil_div(dot_.problem.rows, Dim(config_.tile_n)); }
  Dim work() const { return token_tiles() * Dim(layout_.row_units() * config_.split_k); }
  Dim tasks() const { return min(work(), Dim(dot_.sm_count * config_.ctas_per_sm)); }
  int depth() const { return layout_.depth(); }
  int64_t tile_elements() const { return int64_t{kFragmentRows} * config_.tile_n; }
  // Steps of one stage each: rank_gemm_configs() takes no units that leave a rest.
  int64_t steps() const { return layout_.steps() / config_.units; }

  ValueId declare_partial(const Dim& rows, Lowered& lowered) {
    if (config_.split_k == 1) return kNone;
    return writer_.buffer("partial", DType::kF32,
                          lowered.add_scratch(config_.partial_bytes(layout_, rows)));
  }

  ValueId declare_sides() {
    return layout_.sides_apart ? writer_.buffer("sides", DType::kU32, dot_.dots.sides) : kNone;
  }

  ValueId declare_counters(const Dim& rows, Lowered& lowered) {
    if (config_.split_k == 1) return kNone;
    lowered.counters.push_back(config_.tiles(layout_, rows));
    return writer_.buffer(
        "counters", DType::kI32,
        BufferArgument::counters(static_cast<int32_t>(lowered.counters.size()) - 1));
  }

  struct Place {
    ValueId tile, row_unit, token, split;
  };

  // Work is dealt in groups of row units, all tokens of a group before the next.
  Place place_of(ValueId item) {
    const ValueId tokens = writer_.index(token_tiles());
    Place place;
    place.split = b_.rem(item, b_.index(config_.split_k));
    place.tile = b_.div(item, b_.index(config_.split_k));
    const int64_t units = layout_.row_units(), group = std::min(units, kRowGroup);
    const ValueId of_group = b_.mul(tokens, b_.index(group));
    const ValueId first = b_.mul({b_.div(place.tile, of_group), b_.index(group)});
    const ValueId rest = b_.rem(place.tile, of_group);
    const ValueId height = b_.min({b_.index(group), b_.sub(b_.index(units), first)});
    place.row_unit = b_.add(first, b_.rem(rest, height));
    place.token = b_.mul({b_.div(rest, height), b_.index(config_.tile_n)});
    return place;
  }

  void emit_item(ValueId item) {
    const Place place = place_of(item);
    const Tile accumulators = accumulate(place);
    if (config_.split_k == 1) {
      return finish(place, [&](int first) { return own_chunk(accumulators, first); });
    }
    const ValueId size = b_.index(tile_elements());
    b_.store({partial_, b_.mul(item, size)}, accumulators);
    const ValueId arrived = b_.arrive(counters_, place.tile);
    b_.branch(b_.equal(arrived, b_.index(config_.split_k - 1)), [&] {
      b_.store({counters_, place.tile}, b_.integer_constant(DType::kI32, 0));
      finish(place, [&](int first) { return sum_of_partials(place, accumulators, first); });
      return std::vector<ValueId>{};
    });
  }

  Tile accumulate(const Place& place) {
    const int64_t each = (steps() + config_.split_k - 1) / config_.split_k;
    const ValueId first = b_.mul(place.split, b_.index(each));
    const ValueId last = b_.min({b_.add(first, b_.index(each)), b_.index(steps())});
    std::vector<Tile> initial = {b_.constant(DType::kF32, 0, {kFragmentRows, config_.tile_n})};
    const ApartSides::Rows rows{place.row_unit, b_.index(0)};
    const std::vector<Tile> sides = sides_ ? sides_->load(rows, first) : std::vector<Tile>{};
    const bool carries = sides_ && !sides_->is_constant();
    if (carries) initial.insert(initial.end(), sides.begin(), sides.end());
    return b_.pipeline(
        config_.stages, first, last, initial,
        [&](ValueId step, ValueId stage) {
          fetch_weight(place, step, stage);
          for (int unit = 0; unit < config_.units; ++unit) {
            const ValueId k =
                b_.add({b_.mul(step, b_.index(config_.units * depth())), b_.index(unit * depth())});
            fetch_tokens(place, unit, k, stage);
          }
        },
        [&](ValueId step, ValueId stage, std::span<const ValueId> carried) {
          if (!carries) return std::vector<ValueId>{add_units(carried[0], stage, sides)};
          const ValueId next = b_.min({b_.add(step, b_.index(1)), b_.sub(last, b_.index(1))});
          std::vector<ValueId> out = sides_->load(rows, next);
          out.insert(out.begin(), add_units(carried[0], stage, carried.subspan(1)));
          return out;
        })[0];
  }

  Tile add_units(Tile accumulators, ValueId stage, std::span<const Tile> sides) {
    const int together = layout_.scales_blocks() ? layout_.units_together(config_.units) : 0;
    Tile part = accumulators;
    for (int unit = 0; unit < config_.units; ++unit) {
      const std::vector<std::vector<Tile>> right = tokens_of_blocks(stage, unit);
      const Tile left = left_operand(stage, unit, sides);
      for (int block = 0; block < layout_.accumulators_per_unit(); ++block) {
        if (together > 0 && unit % together == 0) {
          part = b_.constant(DType::kF32, 0, {kFragmentRows, config_.tile_n});
        }
        part = multiply(part, reader_.operand_of_block(left, block),
                        right[static_cast<size_t>(block)]);
        if (together == 0 || (unit + 1) % together != 0) continue;
        const Tile scales = reader_.block_scales(places(unit, sides), stage, block, config_.tile_n);
        accumulators = b_.fma(part, scales, accumulators);
      }
    }
    return together > 0 ? accumulators : part;
  }

  // By block of the unit and by term.
  std::vector<std::vector<Tile>> tokens_of_blocks(ValueId stage, int unit) {
    std::vector<std::vector<Tile>> out;
    for (int block = 0; block < layout_.accumulators_per_unit(); ++block) {
      out.emplace_back();
      for (int term = 0; term < layout_.row_terms; ++term) {
        const ValueId ring = x_ring(unit, term);
        out.back().push_back(read_block(b_, ring, stage, config_.tile_n, layout_, block));
      }
    }
    return out;
  }

  // Smallest terms first.
  Tile multiply(Tile accumulators, Tile left, std::span<const Tile> terms) {
    for (; !terms.empty(); terms = terms.first(terms.size() - 1)) {
      const Tile right = b_.transpose(terms.back());
      accumulators = layout_.is_tf32() ? b_.dot_tf32(accumulators, left, right)
                                       : b_.dot(accumulators, left, right);
    }
    return accumulators;
  }

  ValueId x_ring(int unit, int term) const {
    return x_rings_[static_cast<size_t>(unit * layout_.row_terms + term)];
  }

  void fetch_tokens(const Place& place, int unit, ValueId k, ValueId stage) {
    const ValueId width = b_.index(layout_.k);
    const Builder::Matrix x{x_, writer_.index(all_terms()), width, width};
    for (int term = 0; term < layout_.row_terms; ++term) {
      const ValueId row = b_.add(place.token, b_.mul(b_.index(term), rows_));
      b_.tma_load(x_ring(unit, term), stage, x, row, k);
    }
  }

  // The units of a step follow each other.
  void fetch_weight(const Place& place, ValueId step, ValueId stage) {
    const ValueId first = b_.add(
        {b_.mul(place.row_unit, b_.index(layout_.steps())), b_.mul(step, b_.index(config_.units))});
    if (!layout_.is_plain()) {
      return b_.bulk_load(w_rings_[0], stage, w_, b_.mul(first, b_.index(layout_.unit_words())));
    }
    const ValueId rows = b_.index(layout_.row_units() * layout_.steps() * kFragmentRows);
    const Builder::Matrix w{w_, rows, b_.index(depth()), b_.index(depth())};
    for (int unit = 0; unit < config_.units; ++unit) {
      const ValueId row = b_.mul({b_.add(first, b_.index(unit)), b_.index(kFragmentRows)});
      b_.tma_load(w_rings_[static_cast<size_t>(unit)], stage, w, row, b_.index(0));
    }
  }

  FragmentPlaces places(int unit, std::span<const Tile> sides) const {
    FragmentPlaces places = FragmentPlaces::of_unit(layout_, w_rings_[0], unit);
    if (sides_) sides_->place(sides, unit, places);
    return places;
  }

  Tile left_operand(ValueId stage, int unit, std::span<const Tile> sides) {
    if (layout_.is_plain()) {
      return b_.read(w_rings_[static_cast<size_t>(unit)], stage, {kFragmentRows, depth()});
    }
    return reader_.operand(places(unit, sides), stage);
  }

  Tile own_chunk(Tile accumulators, int first) {
    return b_.slice(accumulators, {0, first}, {kFragmentRows, chunk()});
  }

  // In the order of the splits, whoever came last. Its own partial sum is in registers, so that the
  // others are read as it lies there.
  Tile sum_of_partials(const Place& place, Tile accumulators, int first) {
    const Tile own = own_chunk(accumulators, first);
    const ValueId tile = b_.mul(place.tile, b_.index(config_.split_k * tile_elements()));
    Tile total = kNone;
    for (int64_t split = 0; split < config_.split_k; ++split) {
      const ValueId offset = b_.add(tile, b_.index(split * tile_elements() + first));
      const Tile other = b_.load({partial_, offset, {b_.index(config_.tile_n), b_.index(1)}, {}},
                                 {kFragmentRows, chunk()});
      const Tile is_own = b_.splat(b_.equal(place.split, b_.index(split)), b_.type(own).shape);
      const Tile partial = b_.select(is_own, own, other);
      total = total == kNone ? partial : b_.add(total, partial);
    }
    return total;
  }

  // `chunk_of(first)`: of the tokens from `first` on, [128, chunk].
  template <typename ChunkOf>
  void finish(const Place& place, const ChunkOf& chunk_of) {
    const ValueId row = b_.mul(place.row_unit, b_.index(kFragmentRows));
    for (int first = 0; first < config_.tile_n; first += chunk()) {
      const ValueId token = b_.add(place.token, b_.index(first));
      end_.emit(token, row, b_.transpose(chunk_of(first)));
    }
  }

  const PipelinedDot& dot_;
  const FragmentLayout& layout_;
  const GemmConfig& config_;
  LaunchWriter writer_;
  Builder& b_;
  ValueId x_, w_, side_words_, partial_, counters_;
  ProductEnd end_;
  FragmentReader reader_;
  std::optional<ApartSides> sides_;
  ValueId rows_ = kNone;
  std::vector<ValueId> w_rings_, x_rings_;
};

}  // namespace

Launch PipelinedDot::emit(const GemmConfig& config, const Dim& rows, Lowered& lowered) const {
  if (config.is_skinny()) return emit_skinny(config, lowered);
  return Emitter(*this, config, rows, lowered).run();
}

}  // namespace tenon::kernels
