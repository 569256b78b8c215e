#include "kernels/llvm/scaled_dot/pack_kernel.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/content_cache.h"
#include "codegen/tile/builder.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;
using Side = FragmentLayout::Side;

constexpr int kPairRows = 8;  // rows g and g + 8 of a pair

DType plain_type(const FragmentLayout& layout) {
  return layout.is_tf32() ? DType::kU32 : DType::kU16;
}

class PackWriter {
 public:
  explicit PackWriter(const PackTask& task)
      : task_(task),
        layout_(task.layout),
        b_(fmt::format("pack_{}_{}", task.only_sides ? "sides" : "units",
                       name(layout_.is_plain() ? plain_type(layout_) : layout_.element->codes))) {}

  codegen::Kernel write() {
    declare_parameters();
    find_unit();
    if (task_.has_codes()) layout_.is_plain() ? pack_plain() : pack_codes();
    if (!task_.has_sides() || layout_.is_plain()) return b_.finish();
    const int begin = task_.only_sides ? 0 : layout_.code_words();
    pack_side(layout_.scale, layout_.scale_rule, begin, &Part::scales);
    const FormatRule* zero_rule = layout_.zero.holds_codes() ? &layout_.rule_of_zeros() : nullptr;
    pack_side(layout_.zero, zero_rule, begin + layout_.scale.words(), &Part::zeros);
    return b_.finish();
  }

 private:
  // A matrix in memory, by (column, k or block).
  struct Stored {
    DType type = DType::kUndefined;
    ValueId buffer = kNone, table = kNone;
    ValueId per_column = kNone, per_k = kNone;  // strides
    ValueId first = kNone;                      // element where the unit begins
  };
  struct Part {
    int half = -1;  // as of FragmentRows
    uint32_t flip = 0;
    Stored codes = {}, scales = {}, zeros = {};
  };
  // Of each word that is made: which row of the unit, and which of the row's scales.
  struct Place {
    Tile row, index;
  };

  void declare_parameters() {
    for (const StoredPart& stored : task_.parts) parts_.push_back(declare_buffers(stored));
    made_ = b_.buffer("made", layout_.is_plain() ? plain_type(layout_) : DType::kU32);
    n_ = b_.index_parameter("n");
    k_ = b_.index_parameter("k");
    steps_ = b_.index_parameter("steps");
    if (has_sides()) block_ = b_.index_parameter("block");
    for (Part& part : parts_) {
      for (Stored* stored : {&part.codes, &part.scales, &part.zeros}) {
        if (stored->buffer == kNone) continue;
        stored->per_column = b_.index_parameter(fmt::format("d{}", strides_++));
        stored->per_k = b_.index_parameter(fmt::format("d{}", strides_++));
      }
    }
  }

  bool has_sides() const { return task_.has_sides() && layout_.side_words() > 0; }

  Part declare_buffers(const StoredPart& stored) {
    const auto number = static_cast<int>(parts_.size());
    const auto buffer = [&](std::string_view what, DType type) {
      return b_.buffer(fmt::format("{}{}", what, number), type);
    };
    const auto side = [&](std::string_view what, DType type) {
      Stored side{type};
      if (type == DType::kUndefined || !has_sides()) return side;
      const bool has_table = StoredPart::has_table(type);
      side.buffer = buffer(what, has_table ? DType::kU8 : type);
      if (has_table) side.table = buffer(fmt::format("{}_table", what), DType::kU32);
      return side;
    };
    Part part{task_.parts.size() == 2 ? number : -1, stored.flip};
    const DType codes = layout_.is_plain() ? plain_type(layout_) : DType::kU8;
    if (task_.has_codes()) part.codes = {codes, buffer("codes", codes)};
    part.scales = side("scales", stored.scale);
    part.zeros = side("zeros", stored.zero);
    return part;
  }

  // Where the task's unit begins, in the weight and in memory.
  void find_unit() {
    const ValueId row_unit = b_.div(b_.task(), steps_), step = b_.rem(b_.task(), steps_);
    const int64_t rows = kFragmentRows / static_cast<int64_t>(parts_.size());
    const ValueId first_n = b_.mul(row_unit, b_.index(rows));
    const ValueId depth = task_.only_sides ? block_ : b_.index(layout_.depth());
    const ValueId first_k = b_.mul(step, depth);
    rows_left_ = of_index(b_.sub(n_, first_n));
    k_left_ = of_index(b_.sub(k_, first_k));
    ValueId first_block = step;
    if (has_sides() && !task_.only_sides) {
      first_block = b_.div(first_k, block_);
      k_in_block_ = of_index(b_.rem(first_k, block_));
    }
    for (Part& part : parts_) {
      const auto begin = [&](Stored& stored, ValueId k) {
        if (stored.buffer == kNone) return;
        stored.first = b_.add({b_.mul(first_n, stored.per_column), b_.mul(k, stored.per_k)});
      };
      begin(part.codes, first_k);
      begin(part.scales, first_block);
      begin(part.zeros, first_block);
    }
    const int elements = layout_.is_plain() ? kFragmentRows * layout_.depth() : task_.words();
    unit_ = b_.mul({b_.task(), b_.index(elements)});
  }

  Tile of_index(ValueId index) { return b_.from_index(index, DType::kI32); }
  Tile number(int64_t value) { return b_.integer_constant(DType::kI32, value); }
  Tile bits(uint32_t value) { return b_.integer_constant(DType::kU32, value); }
  Tile shifted_left(Tile x, int shift) {
    return shift == 0 ? x : b_.binary(Fn::kShiftLeft, x, amount(x, shift));
  }
  Tile shifted_right(Tile x, int shift) {
    return shift == 0 ? x : b_.binary(Fn::kShiftRight, x, amount(x, shift));
  }
  Tile amount(Tile like, int shift) { return b_.integer_constant(b_.type(like).dtype, shift); }
  Tile lowest_bits(Tile x, int count) {
    return b_.binary(Fn::kAnd, x, b_.integer_constant(b_.type(x).dtype, (1 << count) - 1));
  }
  // Numbers of a power of two.
  Tile quotient(Tile x, int divisor) {
    return shifted_right(x, std::countr_zero(static_cast<unsigned>(divisor)));
  }
  Tile remainder(Tile x, int divisor) {
    return lowest_bits(x, std::countr_zero(static_cast<unsigned>(divisor)));
  }
  Tile plus(Tile x, int64_t value) { return value == 0 ? x : b_.add(x, number(value)); }
  Tile both(Tile a, Tile b) { return b_.binary(Fn::kAnd, a, b); }
  Tile either(Tile a, Tile b) { return a == kNone ? b : b_.binary(Fn::kOr, a, b); }

  // A row of the unit as a column of the part's weight, from the unit's first one on.
  Tile column(const Part& part, Tile row) {
    if (part.half < 0) return row;
    return b_.add({shifted_left(quotient(row, 16), 3), remainder(row, kPairRows)});
  }

  Tile is_inside(const Part& part, Tile row, Tile column, Tile k) {
    const Tile in_rows = b_.compare(Fn::kLess, column, rows_left_);
    Tile inside = k == kNone ? in_rows : both(in_rows, b_.compare(Fn::kLess, k, k_left_));
    if (part.half < 0 || row == kNone) return inside;
    const Tile half = remainder(quotient(row, kPairRows), 2);
    return both(inside, b_.compare(Fn::kEqual, half, number(part.half)));
  }

  Tile element(const Stored& stored, Tile column, Tile k) {
    const Tile of_column = b_.mul(column, of_index(stored.per_column));
    return b_.add(of_column, b_.mul(k, of_index(stored.per_k)));
  }

  // Codes of `width` bits; `fill`: what stands where nothing is. Eight of them begin with a byte.
  Tile codes(const Stored& stored, int width, Tile element, Tile inside, uint32_t fill) {
    ValueId first = stored.first;
    if (width < 8) {
      element = b_.add({element, of_index(b_.rem(first, b_.index(8)))});
      first = b_.mul({b_.div(first, b_.index(8)), b_.index(width)});
    }
    const int in_byte = 8 / width;
    for (int filled = width; filled < 8; filled *= 2) fill |= fill << filled;
    const Tile bytes = b_.gather(stored.buffer, first, quotient(element, in_byte), inside, fill);
    const Tile words = b_.cast(bytes, DType::kU32);
    if (width == 8) return words;
    const Tile place = b_.cast(remainder(element, in_byte), DType::kU32);
    const int log_width = std::countr_zero(static_cast<unsigned>(width));
    return lowest_bits(b_.binary(Fn::kShiftRight, {words, shifted_left(place, log_width)}), width);
  }

  // Bits of one code in either half of a word.
  Tile moved(Tile codes, const FormatRule& rule, size_t pair) {
    Tile out = kNone;
    for (const auto& [mask, shift] : rule.code_moves(pair)) {
      const Tile kept = b_.binary(Fn::kAnd, codes, bits(mask | uint32_t{mask} << 16));
      out = either(out, shift < 0 ? shifted_right(kept, -shift) : shifted_left(kept, shift));
    }
    return out;
  }

  void store(Tile words, int64_t at) { b_.store({made_, b_.add(unit_, b_.index(at))}, words); }

  void pack_plain() {
    const std::vector<int> shape = {kFragmentRows, layout_.depth()};
    const Tile row = b_.iota(DType::kI32, shape, 0), k = b_.iota(DType::kI32, shape, 1);
    Tile out = kNone;
    for (const Part& part : parts_) {
      const Tile n = column(part, row);
      const Tile inside = is_inside(part, row, n, k);
      const Tile at = element(part.codes, n, k);
      out = either(out, b_.gather(part.codes.buffer, part.codes.first, at, inside));
    }
    store(out, 0);
  }

  // Word (thread, i) of a run, as pair_place has it backwards.
  void pack_codes() {
    const FormatRule& rule = *layout_.element;
    const std::vector<int> shape = {kFragmentThreads, layout_.code_width()};
    const Tile thread = b_.iota(DType::kI32, shape, 0), word = b_.iota(DType::kI32, shape, 1);
    const Tile warp = quotient(thread, 32), g = remainder(quotient(thread, 4), 8);
    const Tile lane_k = shifted_left(remainder(thread, 4), 1);
    const int slices = std::max(1, static_cast<int>(rule.pairs.size()) / 4);  // of a word
    for (int run = 0; run < layout_.code_runs(); ++run) {
      Tile out = kNone;
      for (size_t pair = 0; pair < rule.pairs.size(); ++pair) {
        const int in_slice = run * 2 + static_cast<int>(pair) % 4, half = in_slice % 2;
        const Tile slice =
            plus(slices == 1 ? word : shifted_left(word, 1), static_cast<int>(pair) / 4);
        const Tile first_k = plus(shifted_left(slice, 4), in_slice / 2 * 8);
        const Tile k = b_.add(first_k, lane_k);
        for (const Part& part : parts_) {
          if (part.half >= 0 && part.half != half) continue;
          const Tile rows = shifted_left(warp, part.half < 0 ? 4 : 3);
          const Tile n = b_.add({plus(rows, part.half < 0 ? half * kPairRows : 0), g});
          out = either(out, moved(code_pair(part, n, k), rule, pair));
        }
      }
      store(out, int64_t{run} * kFragmentThreads * layout_.code_width());
    }
  }

  Tile code_pair(const Part& part, Tile n, Tile k) {
    Tile pair = kNone;
    for (const int h : {0, 1}) {
      const Tile own_k = plus(k, h);
      const Tile inside = is_inside(part, kNone, n, own_k);
      const Tile at = element(part.codes, n, own_k);
      Tile code = codes(part.codes, layout_.element->bits, at, inside, part.flip);
      if (part.flip != 0) code = b_.binary(Fn::kXor, code, bits(part.flip));
      pair = either(pair, shifted_left(code, 16 * h));
    }
    return pair;
  }

  // What one row's scale or zero point number `index` is packed as, zero where there is none.
  Tile side_bits(const Side& side, const Part& part, const Stored& stored, const Place& place) {
    const Tile n = column(part, place.row);
    Tile k = kNone, block = number(0);
    if (!task_.only_sides) {
      k = b_.mul(place.index, number(kFragmentDepth / side.per_row));
      block = b_.div({b_.add(k, k_in_block_), of_index(block_)});
    }
    const Tile inside = is_inside(part, place.row, n, k);
    const Tile at = element(stored, n, block);
    if (stored.table != kNone) {
      const Tile code = codes(stored, bit_width(stored.type), at, inside, 0);
      const Tile entry = b_.cast(code, DType::kI32);
      return b_.gather(stored.table, b_.index(0), entry, inside);
    }
    const Tile value = b_.gather(stored.buffer, stored.first, at, inside);
    if (side.kind == Side::Kind::kHalves) {
      return b_.cast(b_.bitcast(value, DType::kU16), DType::kU32);
    }
    const Tile f32 = b_.cast(value, DType::kF32);
    if (!side.holds_codes()) return b_.bitcast(f32, DType::kU32);
    const Tile code = b_.bitcast(b_.cast(f32, DType::kI32), DType::kU32);
    const uint8_t inverted = layout_.rule_of_zeros().inverted;
    if (inverted == 0) return code;
    const Tile flipped = b_.binary(Fn::kXor, code, bits(inverted));
    return b_.select(inside, flipped, b_.integer_constant(DType::kU32, 0, b_.type(code).shape));
  }

  // visit(place, pair of the rule, half of the word) of all that a word of the side holds.
  template <typename Visit>
  void for_each_place(const Side& side, const Visit& visit) {
    const int count = side.per_row;
    const Tile word = b_.iota(DType::kI32, {side.words()}, 0);
    const auto first_row = [&](Tile pair) {
      return b_.add({shifted_left(quotient(pair, kPairRows), 4), remainder(pair, kPairRows)});
    };
    switch (side.kind) {
      case Side::Kind::kShared:
        return visit({b_.mul(word, number(0)), number(0)}, 0, -1);
      case Side::Kind::kColumn:
        return visit({quotient(word, count), remainder(word, count)}, 0, -1);
      case Side::Kind::kFloats: {
        const Tile row = first_row(quotient(word, 2 * count)), own = remainder(word, 2 * count);
        const Tile second = shifted_left(quotient(own, count), 3);
        return visit({b_.add(row, second), remainder(own, count)}, 0, -1);
      }
      default:
        break;
    }
    const int slots = side.kind == Side::Kind::kNibbles ? 4
                      : side.kind == Side::Kind::kBytes ? 2
                                                        : 1;
    for (int slot = 0; slot < slots; ++slot) {
      for (const int h : {0, 1}) visit(place_of_half(side, word, slot, h, first_row), slot, h);
    }
  }

  template <typename FirstRow>
  Place place_of_half(const Side& side, Tile word, int slot, int h, const FirstRow& first_row) {
    const int count = side.per_row;
    if (side.kind == Side::Kind::kNibbles) {
      if (count == 4)
        return {plus(first_row(word), slot / 2 * kPairRows), number(slot % 2 * 2 + h)};
      const Tile pair = plus(shifted_left(word, 1), slot / 2);
      return {plus(first_row(pair), slot % 2 * kPairRows), number(h)};
    }
    const int of_pair = side.words_of_pair();
    const Tile row = first_row(quotient(word, of_pair)), own = remainder(word, of_pair);
    if (side.kind == Side::Kind::kBytes) {
      if (count == 2) return {plus(row, slot * kPairRows), number(h)};
      return {b_.add({row, shifted_left(own, 3)}), number(2 * slot + h)};
    }
    if (count == 1) return {plus(row, h * kPairRows), number(0)};
    const Tile second = shifted_left(quotient(own, count / 2), 3);
    return {b_.add(row, second), plus(shifted_left(remainder(own, count / 2), 1), h)};
  }

  void pack_side(const Side& side, const FormatRule* rule, int64_t at, Stored Part::*stored) {
    if (side.words() == 0) return;
    Tile out = kNone;
    for_each_place(side, [&](const Place& place, size_t pair, int half) {
      for (const Part& part : parts_) {
        Tile value = side_bits(side, part, part.*stored, place);
        if (side.holds_codes()) value = moved(value, *rule, pair);
        out = either(out, half > 0 ? shifted_left(value, 16) : value);
      }
    });
    store(out, at);
  }

  const PackTask& task_;
  const FragmentLayout& layout_;
  Builder b_;
  std::vector<Part> parts_;
  ValueId made_ = kNone, n_ = kNone, k_ = kNone, steps_ = kNone, block_ = kNone;
  int strides_ = 0;
  ValueId unit_ = kNone;  // first element that the task makes
  // From the unit's first row and k on: what the weight still has; and where in a block it begins.
  Tile rows_left_ = kNone, k_left_ = kNone, k_in_block_ = kNone;
};

// A layout's rules follow from its types.
std::string all_that_matters(const PackTask& task) {
  const FragmentLayout& layout = task.layout;
  std::string text =
      fmt::format("pack {} {} {}", name(layout.operand), task.only_sides, task.parts.size());
  if (layout.is_plain()) return text;
  text += fmt::format(" {} {} {}", name(layout.element->codes), layout.sides_apart,
                      layout.scale_rule ? name(layout.scale_rule->codes) : "-");
  for (const Side& side : {layout.scale, layout.zero}) {
    text += fmt::format(" {}*{}", static_cast<int>(side.kind), side.per_row);
  }
  for (const StoredPart& part : task.parts) {
    text += fmt::format(" {} {} {}", part.flip, name(part.scale), name(part.zero));
  }
  return text;
}

Support can_pack_side(const Side& side, DType type) {
  if (side.kind == Side::Kind::kNone || StoredPart::has_table(type)) return Support::yes();
  const bool is_half = type == DType::kF16 || type == DType::kBF16;
  if (is_half || (type == DType::kF32 && side.kind != Side::Kind::kHalves)) return Support::yes();
  return Support::no(fmt::format("{} scales or zero points are packed on the host", name(type)));
}

}  // namespace

Support can_pack(const PackTask& task) {
  if (task.layout.is_plain() || !task.has_sides()) return Support::yes();
  for (const StoredPart& part : task.parts) {
    if (Support scale = can_pack_side(task.layout.scale, part.scale); !scale) return scale;
    if (Support zero = can_pack_side(task.layout.zero, part.zero); !zero) return zero;
  }
  return Support::yes();
}

std::shared_ptr<const codegen::Kernel> pack_kernel(const PackTask& task) {
  return process_cache<codegen::Kernel>().get(sha256(all_that_matters(task)), [&] {
    auto kernel = std::make_shared<const codegen::Kernel>(PackWriter(task).write());
    const size_t bytes = kernel->types.size() * 2 * sizeof(codegen::Operation);  // about
    return std::pair{std::move(kernel), bytes};
  });
}

}  // namespace tenon::kernels
