#include "kernels/llvm/scaled_dot/packed_weight.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/convert.h"
#include "base/thread_pool.h"
#include "kernels/llvm/scaled_dot/weight_source.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::ValueId;

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool has_type(DType dtype, std::initializer_list<DType> types) {
  for (const DType type : types) {
    if (type == dtype) return true;
  }
  return false;
}

// Not cleared: panels are written whole, by the threads that take them.
PackedConstant allocate(size_t bytes) { return {aligned_bytes(bytes), bytes}; }

int64_t real_columns(const WeightLayout& layout, int64_t panel) {
  return std::min<int64_t>(layout.columns, layout.n - panel * layout.columns);
}

// Four bytes of a row of K are one word as they stand.
bool words_are_contiguous(const ScaledDotProblem& problem, const WeightLayout& layout) {
  return problem.dot.b_k_last && layout.k % layout.per_word() == 0;
}

void pack_words(const std::byte* source, const ScaledDotProblem& problem,
                const WeightLayout& layout, int64_t panel, uint32_t* out) {
  const int64_t first = panel * layout.columns;
  const int64_t words = layout.k / layout.per_word();
  for (int64_t c = 0; c < real_columns(layout, panel); ++c) {
    if (words_are_contiguous(problem, layout)) {
      const std::byte* row = source + (first + c) * words * 4;
      for (int64_t w = 0; w < words; ++w) std::memcpy(&out[w * layout.columns + c], row + 4 * w, 4);
      continue;
    }
    for (int64_t k = 0; k < layout.k; ++k) {
      const uint64_t code =
          load_code(layout.element, source, element_index(problem, layout.k, k, first + c));
      out[k / layout.per_word() * layout.columns + c] |=
          static_cast<uint32_t>(code << (k % layout.per_word() * layout.bits));
    }
  }
}

// Columns past N stay zero.
void flip_words(const WeightLayout& layout, int64_t panel, uint32_t* out) {
  const int64_t columns = real_columns(layout, panel);
  for (int64_t w = 0; w < layout.k / layout.per_word(); ++w) {
    for (int64_t c = 0; c < columns; ++c) out[w * layout.columns + c] ^= layout.flipped;
  }
}

// Dequantises exactly as ONNX does: (q - zero) * scale in f32.
class PlainPacker {
 public:
  PlainPacker(const ir::Graph& graph, const ScaledDotProblem& problem, const WeightLayout& layout)
      : problem_(problem),
        layout_(layout),
        source_(graph.value(problem.dot.b).constant->data),
        row_(stored_row(graph, problem)) {
    const ir::BlockScale& scale = problem_.dot.scale_b;
    if (scale.scale != ir::kNoValue) scales_.emplace(ScaleReader::scales(graph, problem_));
    if (scale.zero_point != ir::kNoValue) zeros_.emplace(ScaleReader::zeros(graph, problem_));
  }
  PlainPacker(const PlainPacker&) = delete;  // readers refer to the problem

  // Rows of K of all panels, one after the other, from `first` on.
  void pack(int64_t first, int64_t count, float* out) const {
    std::fill(out, out + count * layout_.columns, 0.0F);
    while (count > 0) {
      const int64_t panel = first / layout_.k, k = first % layout_.k;
      const int64_t rows = std::min({count, layout_.k - k, kTile});
      pack_rows(panel, k, k + rows, out);
      first += rows;
      count -= rows;
      out += rows * layout_.columns;
    }
  }

 private:
  static constexpr int64_t kTile = 64;

  // Whichever way the file goes, what is read and what is written both stay in a cache.
  void pack_rows(int64_t panel, int64_t first_k, int64_t last_k, float* out) const {
    for (int64_t c = 0; c < real_columns(layout_, panel); ++c) {
      pack_column(panel * layout_.columns + c, first_k, last_k, out + c);
    }
  }

  void pack_column(int64_t n, int64_t first_k, int64_t last_k, float* out) const {
    const int64_t block = problem_.block();
    for (int64_t k = first_k; k < last_k;) {
      const int64_t number = k / block, end = std::min(last_k, (number + 1) * block);
      const auto zero =
          static_cast<float>(zeros_ ? zeros_->number(number, n)
                                    : static_cast<double>(problem_.dot.scale_b.zero_offset));
      const auto scale = static_cast<float>(scales_ ? scales_->number(number, n) : 1);
      for (; k < end; ++k, out += layout_.columns) {
        const int64_t index = element_index(problem_, row_, k, n);
        const auto value = static_cast<float>(load_element(problem_.b_type, source_, index)) - zero;
        *out = scales_ ? value * scale : value;
      }
    }
  }

  const ScaledDotProblem problem_;
  const WeightLayout layout_;
  const std::byte* source_;
  int64_t row_;
  std::optional<ScaleReader> scales_, zeros_;
};

// Made when it is needed: four bytes an element are up to eight times the model's.
PackedConstant pack_plain(const ir::Graph& graph, const ScaledDotProblem& problem,
                          const WeightLayout& layout) {
  PackedConstant packed;
  packed.bytes = storage_bytes(DType::kF32, layout.panels * layout.k * layout.columns);
  packed.unit = storage_bytes(DType::kF32, layout.columns);
  const auto packer = std::make_shared<const PlainPacker>(graph, problem, layout);
  packed.pack = [packer, unit = packed.unit](int64_t first_byte, std::span<std::byte> out) {
    packer->pack(first_byte / static_cast<int64_t>(unit), static_cast<int64_t>(out.size() / unit),
                 reinterpret_cast<float*>(out.data()));
  };
  return packed;
}

void pack_halves(const ir::Graph& graph, const ScaledDotProblem& problem,
                 const WeightLayout& layout, int64_t panel, uint16_t* out) {
  const std::byte* source = graph.value(problem.dot.b).constant->data;  // aligned to nothing
  const int64_t columns = real_columns(layout, panel);
  const auto index = [&, row = stored_row(graph, problem)](int64_t k, int64_t c) {
    return element_index(problem, row, k, panel * layout.columns + c);
  };
  const int64_t next_k = index(1, 0) - index(0, 0), next_column = index(0, 1) - index(0, 0);
  for (int64_t k = 0; k < layout.k; ++k) {
    const std::byte* from = source + 2 * (index(0, 0) + k * next_k);
    for (int64_t c = 0; c < columns; ++c) {
      std::memcpy(&out[k * layout.columns + c], from + 2 * c * next_column, 2);
    }
  }
}

template <typename Code>
void interleave(const std::byte* codes, int64_t count, int64_t columns, Code* out) {
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(out + i * columns, codes + i * sizeof(Code), sizeof(Code));
}

// What each of the 256 codes of an 8-bit type is in bf16.
std::vector<uint16_t> bf16_table(DType dtype) {
  std::vector<uint16_t> table(256);
  for (uint64_t code = 0; code < table.size(); ++code) {
    table[code] = static_cast<uint16_t>(encode(DType::kBF16, decode(dtype, code)));
  }
  return table;
}

// Scales of one panel. `bf16`: by the file's code, empty where the file's type is kept.
void pack_scales(const ScaleReader& reader, const WeightLayout& layout,
                 const std::vector<uint16_t>& bf16, int64_t panel, std::byte* out) {
  const int64_t first = panel * layout.columns, blocks = layout.blocks();
  for (int64_t c = 0; c < real_columns(layout, panel); ++c) {
    const std::byte* codes = reader.column(first + c);
    const int bits = codes == nullptr ? 0 : bit_width(layout.scale_type);
    if (!bf16.empty()) {
      auto* to = reinterpret_cast<uint16_t*>(out) + c;
      for (int64_t block = 0; block < blocks; ++block) {
        to[block * layout.columns] = bf16[codes == nullptr ? reader.code(block, first + c)
                                                           : std::to_integer<size_t>(codes[block])];
      }
    } else if (bits == 16) {
      interleave(codes, blocks, layout.columns, reinterpret_cast<uint16_t*>(out) + c);
    } else if (bits == 32) {
      interleave(codes, blocks, layout.columns, reinterpret_cast<uint32_t*>(out) + c);
    } else {
      for (int64_t block = 0; block < blocks; ++block) {
        store_code(layout.scale_type, out, block * layout.columns + c,
                   reader.code(block, first + c));
      }
    }
  }
}

void pack_zeros(const ScaleReader& reader, const WeightLayout& layout, int64_t panel,
                std::byte* out) {
  for (int64_t block = 0; block < layout.blocks(); ++block) {
    for (int64_t c = 0; c < real_columns(layout, panel); ++c) {
      store_element(layout.zero_type, out, block * layout.columns + c,
                    reader.number(block, panel * layout.columns + c));
    }
  }
}

// Room for `per_panel` elements of each panel, which `pack` writes to.
PackedConstant pack_panels(const WeightLayout& layout, DType dtype, int64_t per_panel,
                           const std::function<void(int64_t panel, std::byte* out)>& pack) {
  const size_t bytes = storage_bytes(dtype, per_panel);
  PackedConstant packed = allocate(static_cast<size_t>(layout.panels) * bytes);
  parallel_for_each(layout.panels, [&](int64_t panel) {
    std::byte* out = packed.data.get() + static_cast<size_t>(panel) * bytes;
    std::memset(out, 0, bytes);
    pack(panel, out);
  });
  return packed;
}

WeightLayout base_layout(const ScaledDotProblem& problem, int columns) {
  WeightLayout layout;
  layout.columns = columns;
  layout.n = problem.n.value();
  layout.k = problem.k.value();
  layout.panels = ceil_of(layout.n, columns);
  layout.block = problem.block();
  return layout;
}

LayoutAnswer half_layout(const ScaledDotProblem& problem, int columns) {
  const ir::BlockScale& scale = problem.dot.scale_b;
  if (scale.scale != ir::kNoValue || scale.zero_point != ir::kNoValue || scale.zero_offset != 0) {
    return {Support::no("16-bit weights with scales are not supported"), {}};
  }
  WeightLayout layout = base_layout(problem, columns);
  layout.element = problem.b_type;
  layout.bits = 16;
  layout.block = std::max<int64_t>(layout.k, 1);
  return {Support::yes(), layout};
}

}  // namespace

LayoutAnswer packed_layout(const ir::Graph& graph, const ScaledDotProblem& problem, int columns) {
  const auto refuse = [](std::string why) { return LayoutAnswer{Support::no(std::move(why)), {}}; };
  const DType element = problem.b_type;
  if (has_type(element, {DType::kF16, DType::kBF16})) return half_layout(problem, columns);
  if (!has_type(element, {DType::kF4E2M1, DType::kI4, DType::kU4, DType::kI2, DType::kU2,
                          DType::kI8, DType::kU8, DType::kF8E4M3FN, DType::kF8E5M2})) {
    return refuse(fmt::format("no packed layout for {} weights", name(element)));
  }
  WeightLayout layout = base_layout(problem, columns);
  layout.element = element;
  layout.bits = bit_width(element);
  layout.zero_offset = problem.dot.scale_b.zero_offset;
  layout.scale_type = packed_scale_type(graph, problem.dot.scale_b);
  if (layout.k % layout.per_word() != 0 || layout.block % layout.per_word() != 0 ||
      layout.k % layout.block != 0) {
    return refuse(fmt::format("K={} and block_size {} are not multiples of {}", layout.k,
                              layout.block, layout.per_word()));
  }
  if (Support answer = has_constant_scales(graph, problem); !answer) return {answer, {}};
  if (layout.scale_type != DType::kUndefined &&
      !has_type(layout.scale_type, {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3FN,
                                    DType::kF8E5M2, DType::kF8E8M0})) {
    return refuse(fmt::format("scales of type {} are not supported", name(layout.scale_type)));
  }
  layout.eight_bit_scales =
      layout.scale_type != DType::kUndefined && bit_width(layout.scale_type) == 8;
  if (layout.eight_bit_scales) layout.scale_type = DType::kBF16;
  // The sum of a block times infinity hides the NaN of 0 times infinity.
  if (has_infinite_scale(graph, problem)) return refuse("a scale is infinite");
  if (problem.dot.scale_b.zero_point != ir::kNoValue) {
    const DType type = graph.value(problem.dot.scale_b.zero_point).dtype;
    layout.zero_type = has_type(type, {DType::kF32, DType::kBF16}) ? DType::kF32 : DType::kF16;
  }
  // Less their middle, unsigned codes are signed ones with the highest bit flipped.
  if (layout.zero_type == DType::kUndefined && element == DType::kU4 && layout.zero_offset == 8) {
    layout.element = DType::kI4;
    layout.flipped = 0x88888888;
  } else if (layout.zero_type == DType::kUndefined && element == DType::kU8 &&
             layout.zero_offset == 128) {
    layout.element = DType::kI8;
    layout.flipped = 0x80808080;
  }
  if (layout.flipped != 0) layout.zero_offset = 0;
  return {Support::yes(), layout};
}

WeightLayout plain_layout(const ScaledDotProblem& problem, int columns) {
  WeightLayout layout = base_layout(problem, columns);
  layout.element = DType::kF32;
  layout.block = std::max<int64_t>(layout.k, 1);
  return layout;
}

PackedWeight pack_weight(const ir::Graph& graph, const ScaledDotProblem& problem,
                         const WeightLayout& layout) {
  PackedWeight packed{layout, {}, {}, {}};
  const std::byte* source = graph.value(problem.dot.b).constant->data;
  const int64_t words = layout.k / layout.per_word() * layout.columns;
  const int64_t blocks = layout.blocks() * layout.columns;
  const DType word = layout.word_type();
  if (layout.plain()) {
    packed.elements = pack_plain(graph, problem, layout);
    return packed;
  }
  packed.elements = pack_panels(layout, word, words, [&](int64_t panel, std::byte* out) {
    if (layout.is_half()) {
      pack_halves(graph, problem, layout, panel, reinterpret_cast<uint16_t*>(out));
      return;
    }
    pack_words(source, problem, layout, panel, reinterpret_cast<uint32_t*>(out));
    if (layout.flipped != 0) flip_words(layout, panel, reinterpret_cast<uint32_t*>(out));
  });
  if (layout.scale_type != DType::kUndefined) {
    const ScaleReader reader = ScaleReader::scales(graph, problem);
    const std::vector<uint16_t> bf16 =
        layout.eight_bit_scales ? bf16_table(packed_scale_type(graph, problem.dot.scale_b))
                                : std::vector<uint16_t>{};
    packed.scales = pack_panels(
        layout, layout.scale_type, blocks,
        [&](int64_t panel, std::byte* out) { pack_scales(reader, layout, bf16, panel, out); });
  }
  if (layout.zero_type != DType::kUndefined) {
    const ScaleReader reader = ScaleReader::zeros(graph, problem);
    packed.zeros =
        pack_panels(layout, layout.zero_type, blocks,
                    [&](int64_t panel, std::byte* out) { pack_zeros(reader, layout, panel, out); });
  }
  return packed;
}

// ---- what the kernels read

ValueId WeightReader::load_words(Builder& b, ValueId panel, ValueId word) const {
  const int64_t words = layout.k / layout.per_word();
  const ValueId row = b.add(b.mul(panel, b.index(words)), word);
  return b.load({elements, b.mul(row, b.index(layout.columns)), {}, {}}, {layout.columns});
}

void WeightReader::prefetch_words(Builder& b, ValueId panel, ValueId word, int64_t ahead) const {
  const int words_per_line = 64 * 8 / bit_width(layout.word_type());
  const int64_t words = layout.k / layout.per_word();
  const ValueId row = b.add({b.add(b.mul(panel, b.index(words)), word), b.index(ahead)});
  const ValueId first = b.mul(row, b.index(layout.columns));
  for (int line = 0; line < layout.columns; line += words_per_line) {
    b.prefetch(elements, b.add(first, b.index(line)));
  }
}

void WeightReader::prefetch_scale(Builder& b, ValueId panel, ValueId block, int64_t ahead) const {
  if (layout.scale_type == DType::kUndefined) return;
  const int per_line = 64 * 8 / bit_width(layout.scale_type);
  const ValueId row = b.add({b.add(b.mul(panel, b.index(layout.blocks())), block), b.index(ahead)});
  const ValueId first = b.mul(row, b.index(layout.columns));
  for (int line = 0; line < layout.columns; line += per_line) {
    b.prefetch(scales, b.add(first, b.index(line)));
  }
}

namespace {

// Numbers of the 16 codes; types of fewer bits repeat, so that no mask is needed.
std::vector<double> code_table(const WeightLayout& layout) {
  std::vector<double> values(16);
  for (uint64_t code = 0; code < 16; ++code) {
    const uint64_t own = code & ((uint64_t{1} << layout.bits) - 1);
    values[code] = decode(layout.element, own) - static_cast<double>(layout.zero_offset);
  }
  return values;
}

Fn dequantize_function(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3FN:
      return Fn::kDequantizeF8E4M3FN;
    case DType::kF8E5M2:
      return Fn::kDequantizeF8E5M2;
    default:
      return Fn::kNone;
  }
}

}  // namespace

ValueId WeightReader::dequantize(Builder& b, ValueId words, int j) const {
  const std::vector<int> shape = {layout.columns};
  const auto shifted = [&](Fn direction, ValueId value, int by) {
    const DType type = b.type(value).dtype;
    return by == 0 ? value : b.binary(direction, value, b.integer_constant(type, by, shape));
  };
  if (layout.plain()) return words;
  if (layout.is_half()) return b.cast(words, DType::kF32);
  const int shift = j * layout.bits;
  if (layout.bits <= 4) {
    const ValueId table = b.table(DType::kF32, code_table(layout));
    return b.lookup(table, shifted(Fn::kShiftRight, words, shift));
  }
  ValueId value = codegen::kNone;
  if (layout.element == DType::kI8) {
    const ValueId top = b.bitcast(shifted(Fn::kShiftLeft, words, 24 - shift), DType::kI32);
    value = b.cast(shifted(Fn::kShiftRight, top, 24), DType::kF32);
  } else {
    const ValueId code = b.cast(shifted(Fn::kShiftRight, words, shift), DType::kU8);
    const Fn function = dequantize_function(layout.element);
    value = function == Fn::kNone ? b.cast(code, DType::kF32) : b.unary(function, code);
  }
  if (layout.zero_offset == 0) return value;
  return b.sub(value, b.constant(DType::kF32, static_cast<double>(layout.zero_offset), shape));
}

ValueId WeightReader::load_scale(Builder& b, ValueId panel, ValueId block) const {
  const ValueId row = b.add(b.mul(panel, b.index(layout.blocks())), block);
  return b.cast(b.load({scales, b.mul(row, b.index(layout.columns)), {}, {}}, {layout.columns}),
                DType::kF32);
}

ValueId WeightReader::load_zero(Builder& b, ValueId panel, ValueId block) const {
  const ValueId row = b.add(b.mul(panel, b.index(layout.blocks())), block);
  return b.cast(b.load({zeros, b.mul(row, b.index(layout.columns)), {}, {}}, {layout.columns}),
                DType::kF32);
}

}  // namespace tenon::kernels
