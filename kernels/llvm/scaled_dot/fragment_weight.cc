#include "kernels/llvm/scaled_dot/fragment_weight.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/convert.h"
#include "kernels/llvm/scaled_dot/weight_source.h"

namespace tenon::kernels {
namespace {

using Side = FragmentLayout::Side;

// Where two neighbouring codes of a row stand: a word of the unit, counted from the first of the
// row's lanes, and which pair of it.
struct PairPlace {
  int word = 0;
  size_t pair = 0;
};

PairPlace pair_place(int bits, int row_half, int k) {
  const int q = k / 16, pair = k % 16 / 8 * 2 + row_half, lane = k % 8 / 2;
  const int first = lane * std::min(4, bits);
  if (bits == 8)
    return {first + pair / 2 * kFragmentThreads * 4 + q, static_cast<size_t>(pair % 2)};
  if (bits == 4) return {first + q, static_cast<size_t>(pair)};
  return {first + q / 2, static_cast<size_t>(q % 2 * 4 + pair)};
}

// Of signed codes, which are stored as unsigned ones.
uint32_t sign_bit(const ScaledDotProblem& problem, const FragmentLayout& layout) {
  const bool is_signed_integer = is_signed(problem.b_type) && is_integer(problem.b_type);
  return is_signed_integer ? 1u << (layout.element->bits - 1) : 0;
}

class UnitPacker {
 public:
  UnitPacker(const ir::Graph& graph, const ScaledDotProblem& problem, const FragmentLayout& layout)
      : problem_(problem),
        layout_(layout),
        source_(graph.value(problem.dot.b).constant->data),
        row_(stored_row(graph, problem)),
        flip_(flipped_bits(problem, layout)) {
    fill_halves(*layout.element, halves_);
    for (size_t pair = 0; pair < 4 && holds_pairs(); ++pair) {
      for (size_t byte = 0; byte < 256; ++byte) {
        bytes_[pair][byte] =
            halves_[pair][byte % 16 ^ flip_] | uint32_t{halves_[pair][byte / 16 ^ flip_]} << 16;
      }
    }
    for (int k = 0; k < kFragmentDepth; k += 2) {
      for (int half = 0; half < 2; ++half) {
        places_[static_cast<size_t>(half)][static_cast<size_t>(k / 2)] =
            pair_place(layout.element->bits, half, k);
      }
    }
    if (layout.scale.holds_codes()) fill_halves(*layout.scale_rule, scale_halves_);
    if (layout.zero.holds_codes()) fill_halves(layout.rule_of_zeros(), zero_halves_);
    if (layout.scale.kind != Side::Kind::kNone) {
      scales_.emplace(ScaleReader::scales(graph, problem_));
    }
    if (layout.zero.kind != Side::Kind::kNone) {
      zeros_.emplace(ScaleReader::zeros(graph, problem_));
    }
  }

  void pack(const FragmentRows& rows, int64_t step, uint32_t* unit) const {
    const int64_t first_k = step * kFragmentDepth;
    for (int row = 0; row < kFragmentRows; ++row) {
      const int64_t n = rows.column(row);
      if (n < 0 || n >= layout_.n) continue;
      const int lanes = row / 16 * 32 + row % 8 * 4;  // the first of the row's four
      pack_row(unit + lanes * std::min(4, layout_.element->bits),
               places_[static_cast<size_t>(row / 8 % 2)], n, first_k);
    }
    if (!layout_.sides_apart) pack_sides(rows, first_k, unit + layout_.code_words());
  }

  void pack_sides(const FragmentRows& rows, int64_t first_k, uint32_t* words) const {
    const auto scale = [&](int64_t block, int64_t n) {
      return scale_bits(layout_, *scales_, scales_->stored(block, n));
    };
    const auto zero = [&](int64_t block, int64_t n) {
      return zero_bits(problem_, layout_, *zeros_, zeros_->stored(block, n));
    };
    pack_side(layout_.scale, scale_halves_, words, rows, first_k, scale);
    pack_side(layout_.zero, zero_halves_, words + layout_.scale.words(), rows, first_k, zero);
  }

 private:
  using Places = std::array<PairPlace, kFragmentDepth / 2>;
  template <size_t kPairs>
  using Halves = std::array<std::array<uint16_t, 256>, kPairs>;  // of one code: [pair][code]

  template <size_t kPairs>
  static void fill_halves(const FormatRule& rule, Halves<kPairs>& halves) {
    for (size_t pair = 0; pair < rule.pairs.size(); ++pair) {
      const std::vector<CodeMove> moves = rule.code_moves(pair);
      for (size_t code = 0; code < 256; ++code) {
        halves[pair][code] = moved(static_cast<uint8_t>(code), moves);
      }
    }
  }

  // A byte of the file is a pair: most weights are like that.
  bool holds_pairs() const {
    return layout_.element->bits == 4 && problem_.dot.b_k_last && row_ % 2 == 0;
  }

  void pack_row(uint32_t* words, const Places& places, int64_t n, int64_t first_k) const {
    if (holds_pairs() && first_k + kFragmentDepth <= layout_.k) {
      const std::byte* from = source_ + (n * row_ + first_k) / 2;
      for (size_t i = 0; i < places.size(); ++i) {
        words[places[i].word] |= bytes_[places[i].pair][std::to_integer<size_t>(from[i])];
      }
      return;
    }
    const int64_t step = problem_.dot.b_k_last ? 1 : layout_.n;
    int64_t element = element_index(problem_, row_, first_k, n);
    const auto count = std::min<int64_t>(kFragmentDepth, layout_.k - first_k);
    for (int64_t k = 0; k < count; k += 2, element += 2 * step) {
      const PairPlace& place = places[static_cast<size_t>(k / 2)];
      const std::array<uint16_t, 256>& half = halves_[place.pair];
      uint32_t both = half[code(element)];
      if (k + 1 < count) both |= uint32_t{half[code(element + step)]} << 16;
      words[place.word] |= both;
    }
  }

  size_t code(int64_t element) const {
    const int64_t bits = layout_.element->bits, first = element * bits;
    const auto byte = std::to_integer<unsigned>(source_[first / 8]);
    return (byte >> (first % 8) & ((1u << bits) - 1)) ^ flip_;
  }

  template <typename Read>
  void pack_side(const Side& side, const Halves<4>& halves, uint32_t* words,
                 const FragmentRows& rows, int64_t first_k, const Read& read) const {
    if (side.kind == Side::Kind::kNone) return;
    const int count = side.per_row;
    // Those that stand apart are all of one block.
    const int distance = layout_.sides_apart ? 0 : kFragmentDepth / count;
    const auto at = [&](int row, int index) -> uint32_t {
      const int64_t n = rows.column(row), k = first_k + int64_t{index} * distance;
      return n >= 0 && n < layout_.n && k < layout_.k ? read(k / layout_.block, n) : 0;
    };
    if (side.kind == Side::Kind::kShared) {
      std::fill_n(words, side.words(), at(0, 0));
      return;
    }
    if (side.kind == Side::Kind::kColumn) {
      for (int i = 0; i < side.words(); ++i) words[i] |= at(i / count, i % count);
      return;
    }
    for (int pair = 0; pair < kRowPairs; ++pair) {
      const int row = pair / 8 * 16 + pair % 8;
      if (side.kind == Side::Kind::kNibbles) {
        pack_nibbles(count, pair, row, words, halves, at);
        continue;
      }
      for (int word = 0; side.kind == Side::Kind::kFloats && word < 2 * count; ++word) {
        words[pair * 2 * count + word] |= at(row + word / count * 8, word % count);
      }
      for (int h = 0; h < 2 && side.kind != Side::Kind::kFloats; ++h) {
        for (int word = 0; word < side.words_of_pair(); ++word) {
          const uint32_t half = side.kind == Side::Kind::kBytes
                                    ? bytes_half(count, word, h, row, halves, at)
                                    : halves_half(count, word, h, row, at);
          words[pair * side.words_of_pair() + word] |= half << (16 * h);
        }
      }
    }
  }

  // Four of a row: a word has two pairs for either row. Two of a row: two pairs of rows share a
  // word.
  template <typename At>
  static void pack_nibbles(int count, int pair, int row, uint32_t* words, const Halves<4>& halves,
                           const At& at) {
    const int slots = count == 4 ? 4 : 2, first = count == 4 ? 0 : pair % 2 * 2;
    for (int slot = 0; slot < slots; ++slot) {
      for (int h = 0; h < 2; ++h) {
        const uint32_t code =
            count == 4 ? at(row + 8 * (slot / 2), slot % 2 * 2 + h) : at(row + 8 * slot, h);
        const uint32_t half = halves[static_cast<size_t>(first + slot)][code & 15];
        words[pair * count / 4] |= half << (16 * h);
      }
    }
  }

  // Four of a row: pair 0 holds the first two, pair 1 the others. Two of a row: pair 0 holds row g,
  // pair 1 row g + 8.
  template <typename At>
  static uint32_t bytes_half(int count, int word, int h, int row, const Halves<4>& halves,
                             const At& at) {
    uint32_t half = 0;
    for (int pair = 0; pair < 2; ++pair) {
      const uint32_t code = count == 4 ? at(row + 8 * word, 2 * pair + h) : at(row + 8 * pair, h);
      half |= halves[static_cast<size_t>(pair)][code & 0xff];
    }
    return half;
  }

  template <typename At>
  static uint32_t halves_half(int count, int word, int h, int row, const At& at) {
    if (count == 1) return at(row + 8 * h, 0);
    const int words_of_row = count / 2;
    return at(row + word / words_of_row * 8, word % words_of_row * 2 + h);
  }

  const ScaledDotProblem problem_;
  const FragmentLayout layout_;
  const std::byte* source_;
  int64_t row_;
  uint32_t flip_;
  Halves<8> halves_{};
  Halves<4> scale_halves_{}, zero_halves_{};
  std::array<std::array<uint32_t, 256>, 4> bytes_{};  // of a word with two codes: [pair][byte]
  std::array<Places, 2> places_{};                    // of rows g and g + 8
  std::optional<ScaleReader> scales_, zeros_;
};

template <typename Element>
PackUnit plain_packer(const ir::Graph& graph, const ScaledDotProblem& problem,
                      const FragmentLayout& layout) {
  const auto* from = reinterpret_cast<const Element*>(graph.value(problem.dot.b).constant->data);
  const int64_t stored = stored_row(graph, problem);
  return [=](const FragmentRows& rows, int64_t step, uint32_t* words) {
    auto* to = reinterpret_cast<Element*>(words);
    const int64_t first_k = step * layout.depth();
    const int64_t depth = std::min<int64_t>(layout.depth(), layout.k - first_k);
    for (int row = 0; row < kFragmentRows; ++row) {
      const int64_t n = rows.column(row);
      if (n < 0 || n >= layout.n) continue;
      for (int64_t k = 0; k < depth; ++k) {
        to[row * layout.depth() + k] = from[element_index(problem, stored, first_k + k, n)];
      }
    }
  };
}

}  // namespace

uint32_t flipped_bits(const ScaledDotProblem& problem, const FragmentLayout& layout) {
  return sign_bit(problem, layout) ^ layout.element->inverted;
}

uint32_t scale_bits(const FragmentLayout& layout, const ScaleReader& scales, uint64_t stored) {
  if (layout.scale.kind >= Side::Kind::kFloats) {
    return std::bit_cast<uint32_t>(static_cast<float>(scales.number_of(stored)));
  }
  const auto bits = static_cast<uint32_t>(scales.code_of(stored));
  if (layout.scale_type != DType::kF8E8M0) return bits;
  const int bias = layout.operand == DType::kF16 ? 15 : 127;
  return static_cast<uint32_t>(static_cast<int>(bits) - 127 + layout.scale_shift + bias);
}

uint32_t zero_bits(const ScaledDotProblem& problem, const FragmentLayout& layout,
                   const ScaleReader& zeros, uint64_t stored) {
  if (layout.zero.kind == Side::Kind::kHalves) return static_cast<uint32_t>(stored);
  if (layout.zero.kind == Side::Kind::kFloats) {
    return std::bit_cast<uint32_t>(static_cast<float>(zeros.number_of(stored)));
  }
  const auto zero = static_cast<int64_t>(zeros.number_of(stored));
  return static_cast<uint32_t>(zero + sign_bit(problem, layout)) ^ layout.rule_of_zeros().inverted;
}

PackUnit unit_packer(const ir::Graph& graph, const ScaledDotProblem& problem,
                     const FragmentLayout& layout) {
  if (layout.is_tf32()) return plain_packer<uint32_t>(graph, problem, layout);
  if (layout.is_plain()) return plain_packer<uint16_t>(graph, problem, layout);
  const auto packer = std::make_shared<UnitPacker>(graph, problem, layout);
  return [=](const FragmentRows& rows, int64_t step, uint32_t* words) {
    packer->pack(rows, step, words);
  };
}

PackUnit side_packer(const ir::Graph& graph, const ScaledDotProblem& problem,
                     const FragmentLayout& layout) {
  const auto packer = std::make_shared<UnitPacker>(graph, problem, layout);
  return [=](const FragmentRows& rows, int64_t block, uint32_t* words) {
    packer->pack_sides(rows, block * layout.block, words);
  };
}

namespace {

// `steps` runs of `words` for each row unit.
PackedConstant pack_runs(const FragmentLayout& layout, int64_t steps, int words,
                         const PackRowUnit& pack) {
  const auto unit = static_cast<size_t>(words) * sizeof(uint32_t);
  PackedConstant packed;
  packed.bytes = static_cast<size_t>(layout.row_units() * steps) * unit;
  packed.unit = unit;
  packed.pack = [=](int64_t first_byte, std::span<std::byte> out) {
    std::memset(out.data(), 0, out.size());
    const int64_t first = first_byte / static_cast<int64_t>(unit);
    for (size_t at = 0; at < out.size(); at += unit) {
      const int64_t number = first + static_cast<int64_t>(at / unit);
      pack(number / steps, number % steps, reinterpret_cast<uint32_t*>(out.data() + at));
    }
  };
  return packed;
}

}  // namespace

PackedConstant pack_units(const FragmentLayout& layout, const PackRowUnit& pack) {
  return pack_runs(layout, layout.steps(), layout.unit_words(), pack);
}

PackedConstant pack_sides(const FragmentLayout& layout, const PackRowUnit& pack) {
  return pack_runs(layout, layout.blocks(), layout.side_words(), pack);
}

PackedConstant column_scales(const ir::Graph& graph, const ScaledDotProblem& problem,
                             const FragmentLayout& layout) {
  const int64_t columns = layout.row_units() * kFragmentRows;
  PackedConstant scales = zeroed(static_cast<size_t>(columns) * sizeof(float));
  const ScaleReader reader = ScaleReader::scales(graph, problem);
  for (int64_t n = 0; n < layout.n; ++n) {
    store_element(DType::kF32, scales.data.get(), n, reader.number(0, n));
  }
  return scales;
}

}  // namespace tenon::kernels
