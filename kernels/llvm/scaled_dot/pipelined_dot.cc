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
// Tokens whose sums go through the epilogue at once: what it loads must fit beside them all, and
// what the functions of a body need in between.
constexpr int kEpilogueTokens = 32, kBodyTokens = 16;

class Emitter {
 public:
  Emitter(const PipelinedDot& dot, const PipelinedShape& shape, const Dim& rows, Lowered& lowered)
      : dot_(dot),
        layout_(dot.layout),
        shape_(shape),
        writer_("pipelined_dot"),
        b_(writer_.builder),
        x_(writer_.buffer("x", layout_.operand, dot.terms)),
        w_(writer_.buffer("w", layout_.is_plain() ? layout_.operand : DType::kU32, dot.units)),
        side_words_(declare_sides()),
        partial_(declare_partial(rows, lowered)),
        counters_(declare_counters(rows, lowered)),
        end_(writer_, dot.graph, dot.dots, {chunk(), kFragmentRows, shape.tokens}, lowered),
        reader_(b_, layout_) {
    for (const Dim& dim : {dot.problem.rows, all_terms(), token_tiles(), work(), tasks()}) {
      writer_.declare(dim);
    }
  }

  Launch run() {
    rows_ = writer_.index(dot_.problem.rows);
    if (!layout_.is_plain()) {
      w_rings_ = {b_.ring(DType::kU32, {layout_.unit_words() * shape_.units}, shape_.slots)};
    }
    for (int unit = 0; unit < shape_.units; ++unit) {
      if (layout_.is_plain()) {
        w_rings_.push_back(b_.ring(layout_.operand, {kFragmentRows, depth()}, shape_.slots));
      }
      for (int term = 0; term < layout_.row_terms; ++term) {
        x_rings_.push_back(b_.ring(layout_.operand, {shape_.tokens, depth()}, shape_.slots));
      }
    }
    if (layout_.sides_apart) sides_.emplace(b_, layout_, side_words_, shape_.units);
    end_.begin();
    b_.loop(b_.task(), writer_.index(work()), writer_.index(tasks()), {},
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
    return std::min(shape_.tokens, dot_.dots.has_bodies() ? kBodyTokens : kEpilogueTokens);
  }
  Dim all_terms() const { return dot_.problem.rows * Dim(layout_.row_terms); }
  Dim token_tiles() const { return ceil_div(dot_.problem.rows, Dim(shape_.tokens)); }
  Dim work() const { return token_tiles() * Dim(layout_.row_units() * shape_.splits); }
  Dim tasks() const { return min(work(), Dim(dot_.multiprocessors * shape_.blocks)); }
  int depth() const { return layout_.depth(); }
  int64_t tile_elements() const { return int64_t{kFragmentRows} * shape_.tokens; }
  // Steps of one slot each: rank_shapes() takes no units that leave a rest.
  int64_t steps() const { return layout_.steps() / shape_.units; }

  Dim tiles_of(const Dim& rows) const {
    return ceil_div(rows, Dim(shape_.tokens)) * Dim(layout_.row_units());
  }

  ValueId declare_partial(const Dim& rows, Lowered& lowered) {
    if (shape_.splits == 1) return kNone;
    lowered.scratch.push_back(tiles_of(rows) * Dim(shape_.splits * tile_elements() * 4));
    return writer_.buffer(
        "partial", DType::kF32,
        BufferArgument::scratch(static_cast<int32_t>(lowered.scratch.size()) - 1));
  }

  ValueId declare_sides() {
    return layout_.sides_apart ? writer_.buffer("sides", DType::kU32, dot_.dots.sides) : kNone;
  }

  ValueId declare_counters(const Dim& rows, Lowered& lowered) {
    if (shape_.splits == 1) return kNone;
    lowered.counters.push_back(tiles_of(rows));
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
    place.split = b_.rem(item, b_.index(shape_.splits));
    place.tile = b_.div(item, b_.index(shape_.splits));
    const int64_t units = layout_.row_units(), group = std::min(units, kRowGroup);
    const ValueId of_group = b_.mul(tokens, b_.index(group));
    const ValueId first = b_.mul(b_.div(place.tile, of_group), b_.index(group));
    const ValueId rest = b_.rem(place.tile, of_group);
    const ValueId height = b_.min(b_.index(group), b_.sub(b_.index(units), first));
    place.row_unit = b_.add(first, b_.rem(rest, height));
    place.token = b_.mul(b_.div(rest, height), b_.index(shape_.tokens));
    return place;
  }

  void emit_item(ValueId item) {
    const Place place = place_of(item);
    const Tile sums = emit_sums(place);
    if (shape_.splits == 1) {
      return finish(place, [&](int first) { return own_chunk(sums, first); });
    }
    const ValueId size = b_.index(tile_elements());
    b_.store({partial_, b_.mul(item, size)}, sums);
    const ValueId arrived = b_.arrive(counters_, place.tile);
    b_.branch(b_.equal(arrived, b_.index(shape_.splits - 1)), [&] {
      b_.store({counters_, place.tile}, b_.integer_constant(DType::kI32, 0));
      finish(place, [&](int first) { return sum_of_splits(place, sums, first); });
      return std::vector<ValueId>{};
    });
  }

  Tile emit_sums(const Place& place) {
    const int64_t share = (steps() + shape_.splits - 1) / shape_.splits;
    const ValueId first = b_.mul(place.split, b_.index(share));
    const ValueId last = b_.min(b_.add(first, b_.index(share)), b_.index(steps()));
    std::vector<Tile> initial = {b_.constant(DType::kF32, 0, {kFragmentRows, shape_.tokens})};
    const ApartSides::Rows rows{place.row_unit, b_.index(0)};
    const std::vector<Tile> sides = sides_ ? sides_->load(rows, first) : std::vector<Tile>{};
    const bool carries = sides_ && !sides_->is_constant();
    if (carries) initial.insert(initial.end(), sides.begin(), sides.end());
    return b_.pipeline(
        shape_.slots, first, last, initial,
        [&](ValueId step, ValueId slot) {
          fetch_weight(place, step, slot);
          for (int unit = 0; unit < shape_.units; ++unit) {
            const ValueId k =
                b_.add(b_.mul(step, b_.index(shape_.units * depth())), b_.index(unit * depth()));
            fetch_tokens(place, unit, k, slot);
          }
        },
        [&](ValueId step, ValueId slot, std::span<const ValueId> carried) {
          if (!carries) return std::vector<ValueId>{add_units(carried[0], slot, sides)};
          const ValueId next = b_.min(b_.add(step, b_.index(1)), b_.sub(last, b_.index(1)));
          std::vector<ValueId> out = sides_->load(rows, next);
          out.insert(out.begin(), add_units(carried[0], slot, carried.subspan(1)));
          return out;
        })[0];
  }

  Tile add_units(Tile sums, ValueId slot, std::span<const Tile> sides) {
    const int together = layout_.scales_blocks() ? layout_.units_together(shape_.units) : 0;
    Tile part = sums;
    for (int unit = 0; unit < shape_.units; ++unit) {
      const std::vector<std::vector<Tile>> right = tokens_of_blocks(slot, unit);
      const Tile left = left_operand(slot, unit, sides);
      for (int block = 0; block < layout_.sums_of_unit(); ++block) {
        if (together > 0 && unit % together == 0) {
          part = b_.constant(DType::kF32, 0, {kFragmentRows, shape_.tokens});
        }
        part = multiply(part, reader_.operand_of_block(left, block),
                        right[static_cast<size_t>(block)]);
        if (together == 0 || (unit + 1) % together != 0) continue;
        const Tile scales = reader_.block_scales(places(unit, sides), slot, block, shape_.tokens);
        sums = b_.fma(part, scales, sums);
      }
    }
    return together > 0 ? sums : part;
  }

  // By block of the unit and by term.
  std::vector<std::vector<Tile>> tokens_of_blocks(ValueId slot, int unit) {
    std::vector<std::vector<Tile>> out;
    for (int block = 0; block < layout_.sums_of_unit(); ++block) {
      out.emplace_back();
      for (int term = 0; term < layout_.row_terms; ++term) {
        const ValueId ring = x_ring(unit, term);
        out.back().push_back(read_block(b_, ring, slot, shape_.tokens, layout_, block));
      }
    }
    return out;
  }

  // Smallest terms first.
  Tile multiply(Tile sums, Tile left, std::span<const Tile> terms) {
    for (; !terms.empty(); terms = terms.first(terms.size() - 1)) {
      const Tile right = b_.transpose(terms.back());
      sums = layout_.is_tf32() ? b_.dot_tf32(sums, left, right) : b_.dot(sums, left, right);
    }
    return sums;
  }

  ValueId x_ring(int unit, int term) const {
    return x_rings_[static_cast<size_t>(unit * layout_.row_terms + term)];
  }

  void fetch_tokens(const Place& place, int unit, ValueId k, ValueId slot) {
    const ValueId width = b_.index(layout_.k);
    const Builder::Matrix x{x_, writer_.index(all_terms()), width, width};
    for (int term = 0; term < layout_.row_terms; ++term) {
      const ValueId row = b_.add(place.token, b_.mul(b_.index(term), rows_));
      b_.fetch_box(x_ring(unit, term), slot, x, row, k);
    }
  }

  // The units of a step follow each other.
  void fetch_weight(const Place& place, ValueId step, ValueId slot) {
    const ValueId first = b_.add(b_.mul(place.row_unit, b_.index(layout_.steps())),
                                 b_.mul(step, b_.index(shape_.units)));
    if (!layout_.is_plain()) {
      return b_.fetch_run(w_rings_[0], slot, w_, b_.mul(first, b_.index(layout_.unit_words())));
    }
    const ValueId rows = b_.index(layout_.row_units() * layout_.steps() * kFragmentRows);
    const Builder::Matrix w{w_, rows, b_.index(depth()), b_.index(depth())};
    for (int unit = 0; unit < shape_.units; ++unit) {
      const ValueId row = b_.mul(b_.add(first, b_.index(unit)), b_.index(kFragmentRows));
      b_.fetch_box(w_rings_[static_cast<size_t>(unit)], slot, w, row, b_.index(0));
    }
  }

  FragmentPlaces places(int unit, std::span<const Tile> sides) const {
    FragmentPlaces places = FragmentPlaces::of_unit(layout_, w_rings_[0], unit);
    if (sides_) sides_->place(sides, unit, places);
    return places;
  }

  Tile left_operand(ValueId slot, int unit, std::span<const Tile> sides) {
    if (layout_.is_plain()) {
      return b_.read(w_rings_[static_cast<size_t>(unit)], slot, {kFragmentRows, depth()});
    }
    return reader_.operand(places(unit, sides), slot);
  }

  Tile own_chunk(Tile sums, int first) {
    return b_.slice(sums, {0, first}, {kFragmentRows, chunk()});
  }

  // In the order of the splits, whoever came last. Its own share is in registers, so that the
  // others are read as it lies there.
  Tile sum_of_splits(const Place& place, Tile sums, int first) {
    const Tile own = own_chunk(sums, first);
    const ValueId tile = b_.mul(place.tile, b_.index(shape_.splits * tile_elements()));
    Tile total = kNone;
    for (int64_t split = 0; split < shape_.splits; ++split) {
      const ValueId offset = b_.add(tile, b_.index(split * tile_elements() + first));
      const Tile other = b_.load({partial_, offset, {b_.index(shape_.tokens), b_.index(1)}, {}},
                                 {kFragmentRows, chunk()});
      const Tile is_own = b_.splat(b_.equal(place.split, b_.index(split)), b_.type(own).shape);
      const Tile share = b_.select(is_own, own, other);
      total = total == kNone ? share : b_.add(total, share);
    }
    return total;
  }

  // `sums_of(first)`: of the tokens from `first` on, [128, chunk].
  template <typename SumsOf>
  void finish(const Place& place, const SumsOf& sums_of) {
    const ValueId row = b_.mul(place.row_unit, b_.index(kFragmentRows));
    for (int first = 0; first < shape_.tokens; first += chunk()) {
      end_.emit(b_.add(place.token, b_.index(first)), row, b_.transpose(sums_of(first)));
    }
  }

  const PipelinedDot& dot_;
  const FragmentLayout& layout_;
  const PipelinedShape& shape_;
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

Launch PipelinedDot::emit(const PipelinedShape& shape, const Dim& rows, Lowered& lowered) const {
  if (shape.groups > 0) return emit_few_tokens(shape, lowered);
  return Emitter(*this, shape, rows, lowered).run();
}

}  // namespace tenon::kernels
