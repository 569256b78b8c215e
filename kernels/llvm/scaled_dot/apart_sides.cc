#include "kernels/llvm/scaled_dot/apart_sides.h"

namespace tenon::kernels {

using codegen::Fn;
using codegen::ValueId;

namespace {

using Side = FragmentLayout::Side;

constexpr int kRowsApart = 8;  // the two rows of a pair

// That a thread loads of its pair of rows: where two pairs share a word, that one.
int words_to_load(const Side& side) {
  return side.kind == Side::Kind::kNone ? 0 : std::max(1, side.words_of_pair());
}

// From one of them to the next.
int distance(const Side& side) { return side.kind == Side::Kind::kColumn ? kRowsApart : 1; }

}  // namespace

ApartSides::ApartSides(codegen::Builder& b, const FragmentLayout& layout, ValueId buffer, int units,
                       int groups)
    : b_(b), layout_(layout), buffer_(buffer), units_(units), groups_(groups) {
  if (layout.scale.words() > 0) scale_at_ = offsets(layout.scale);
  if (layout.zero.words() > 0) zero_at_ = offsets(layout.zero);
}

int ApartSides::units_of_load() const {
  return is_constant() ? units_ : std::max(1, steps_of_block() / groups_);
}

// Thread 4 p + t has the pair of rows p, [group][pair of the group].
Tile ApartSides::offsets(const Side& side) {
  const std::vector<int> shape = {kFragmentThreads, 1};
  const auto number = [&](int64_t value) { return b_.integer_constant(DType::kI32, value, shape); };
  const Tile pair = b_.div({b_.iota(DType::kI32, shape, 0), number(4)});
  const int of_group = kRowPairs / groups_;
  const Tile own = b_.rem(pair, number(of_group));
  Tile word = own;
  if (side.kind == Side::Kind::kColumn) {  // in the order of the rows
    word = b_.add(own, b_.mul({b_.div(own, number(kRowsApart)), number(kRowsApart)}));
  } else if (side.words_of_pair() > 0) {
    word = b_.mul(own, number(side.words_of_pair()));
  } else {
    word = b_.div(own, number(kRowPairs / side.words()));
  }
  if (is_constant() || steps_of_block() >= groups_) return word;
  const Tile block = b_.div(pair, number(of_group * steps_of_block()));
  return b_.add(word, b_.mul(block, number(layout_.side_words())));
}

ValueId ApartSides::first_block(ValueId step, int load) {
  if (is_constant()) return b_.index(0);
  if (units_of_load() > units_) return b_.div(step, b_.index(units_of_load() / units_));
  const int64_t blocks = std::max(1, groups_ / steps_of_block());  // of a load
  return b_.add({b_.mul(step, b_.index(blocks * loads())), b_.index(blocks * load)});
}

std::vector<Tile> ApartSides::load(const Rows& rows, ValueId step) {
  const int64_t blocks = layout_.blocks();
  std::vector<Tile> words;
  for (int load = 0; load < loads(); ++load) {
    const ValueId run = b_.add({b_.mul(rows.row_unit, b_.index(blocks)), first_block(step, load)});
    const ValueId first = b_.mul(run, b_.index(layout_.side_words()));
    const auto gather = [&](const Side& side, Tile at, int64_t begin) {
      const ValueId own = b_.add(first, b_.mul(rows.warp, b_.index(side.words_of_warp())));
      for (int word = 0; word < words_to_load(side); ++word) {
        const ValueId place = b_.add(own, b_.index(begin + word * distance(side)));
        words.push_back(b_.gather(buffer_, place, at));
      }
    };
    gather(layout_.scale, scale_at_, 0);
    gather(layout_.zero, zero_at_, layout_.scale.words());
  }
  return words;
}

void ApartSides::place(std::span<const Tile> loaded, int unit, FragmentPlaces& places) const {
  const auto scales = static_cast<size_t>(words_to_load(layout_.scale));
  const auto zeros = static_cast<size_t>(words_to_load(layout_.zero));
  const int load = std::min(unit / units_of_load(), loads() - 1);
  const auto own = loaded.subspan(static_cast<size_t>(load) * (scales + zeros), scales + zeros);
  places.scale.loaded.assign(own.begin(), own.begin() + static_cast<int64_t>(scales));
  places.zero.loaded.assign(own.begin() + static_cast<int64_t>(scales), own.end());
}

}  // namespace tenon::kernels
