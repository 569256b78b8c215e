#include "kernels/llvm/scaled_dot/gpu_weight.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "base/convert.h"
#include "kernels/llvm/scaled_dot/weight_source.h"
#include "kernels/llvm/split_parts.h"

namespace tenon::kernels {
namespace {

using codegen::Builder;
using codegen::Fn;
using codegen::kNone;
using codegen::ValueId;

constexpr int64_t kColumnPadding = 64;

int64_t rounded_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

bool is_one_of(DType dtype, std::initializer_list<DType> types) {
  return std::find(types.begin(), types.end(), dtype) != types.end();
}

// Whether an element times its scale has no more bits than the operand type: e2m1 has 2 and e4m3
// has 4, their product lies between 2^-10 and 2688.
bool product_is_exact(DType element, DType scale) {
  return element == DType::kF4E2M1 && scale == DType::kF8E4M3FN;
}

ScaleUse choose_use(const ir::Graph& graph, const ScaledDotProblem& problem,
                    const GpuWeightLayout& layout) {
  const bool scaled = layout.scale_type != DType::kUndefined;
  if (layout.zero_type == DType::kF32) return ScaleUse::kSplit;
  if (!scaled) return ScaleUse::kNone;
  if (product_is_exact(layout.element, layout.scale_type) && layout.blocks() > 1) {
    return ScaleUse::kSlabs;
  }
  // The sum of a block times infinity hides the NaN of 0 times infinity.
  if (has_infinite_scale(graph, problem)) return ScaleUse::kSplit;
  const int64_t group = layout.group(), block = layout.block;
  const bool aligned = layout.blocks() == 1 || block % group == 0 || group % block == 0;
  return aligned ? ScaleUse::kAccumulators : ScaleUse::kSplit;
}

// The weight as pieces of it are made from the file.
class GpuWeightPacker {
 public:
  GpuWeightPacker(const ir::Graph& graph, const ScaledDotProblem& problem,
                  const GpuWeightLayout& layout)
      : problem_(problem),
        layout_(layout),
        source_(graph.value(problem.dot.b).constant->data),
        row_(stored_row(graph, problem)) {
    if (layout.scale_type != DType::kUndefined) {
      scales_.emplace(ScaleReader::scales(graph, problem_));
    }
    if (layout.zero_type != DType::kUndefined) zeros_.emplace(ScaleReader::zeros(graph, problem_));
  }
  GpuWeightPacker(const GpuWeightPacker&) = delete;  // readers refer to the problem

  void pack_group(int64_t group, std::byte* out) const {
    auto* words = reinterpret_cast<uint32_t*>(out);
    const int64_t first = group * layout_.group();
    const int64_t last = std::min(layout_.k, first + layout_.group());
    for (int64_t n = 0; n < layout_.n; ++n) {
      for (int64_t k = first; k < last; ++k) {
        const uint64_t code =
            load_code(layout_.element, source_, element_index(problem_, row_, k, n));
        words[(k - first) % kSlab * layout_.padded_n + n] |=
            static_cast<uint32_t>(code << ((k - first) / kSlab * layout_.bits));
      }
    }
  }
  void pack_scales(int64_t block, std::byte* out) const {
    for (int64_t n = 0; n < layout_.n; ++n) {
      store_code(layout_.scale_type, out, n, scales_->code(block, n));
    }
  }
  void pack_zeros(int64_t block, std::byte* out) const {
    for (int64_t n = 0; n < layout_.n; ++n) {
      store_element(layout_.zero_type, out, n, zeros_->number(block, n));
    }
  }

 private:
  const ScaledDotProblem problem_;
  const GpuWeightLayout layout_;
  const std::byte* source_;
  int64_t row_;
  std::optional<ScaleReader> scales_, zeros_;
};

// `count` runs of `unit` bytes, made when they are needed.
PackedConstant pack_runs(int64_t count, size_t unit,
                         std::function<void(int64_t number, std::byte* out)> pack) {
  PackedConstant packed;
  packed.bytes = static_cast<size_t>(count) * unit;
  packed.unit = unit;
  packed.pack = [unit, pack = std::move(pack)](int64_t first_byte, std::span<std::byte> out) {
    std::memset(out.data(), 0, out.size());
    for (size_t at = 0; at < out.size(); at += unit) {
      pack((first_byte + static_cast<int64_t>(at)) / static_cast<int64_t>(unit), out.data() + at);
    }
  };
  return packed;
}

}  // namespace

GpuLayoutAnswer gpu_layout(const ir::Graph& graph, const ScaledDotProblem& problem) {
  const auto refuse = [](std::string why) {
    return GpuLayoutAnswer{Support::no(std::move(why)), {}};
  };
  if (!is_one_of(problem.b_type, {DType::kF4E2M1, DType::kI4, DType::kU4, DType::kI2, DType::kU2,
                                  DType::kI8, DType::kU8, DType::kF8E4M3FN, DType::kF8E5M2})) {
    return refuse(fmt::format("no packed layout for {} weights", name(problem.b_type)));
  }
  if (Support answer = has_constant_scales(graph, problem); !answer) return {answer, {}};
  GpuWeightLayout layout;
  layout.element = problem.b_type;
  layout.bits = bit_width(problem.b_type);
  layout.k = problem.k.value();
  layout.n = problem.n.value();
  layout.padded_n = rounded_up(layout.n, kColumnPadding);
  if (layout.k == 0 || layout.n == 0) return refuse("N or K is 0");
  layout.block = problem.block();
  layout.zero_offset = problem.dot.scale_b.zero_offset;
  layout.scale_type = packed_scale_type(graph, problem.dot.scale_b);
  if (layout.scale_type != DType::kUndefined &&
      !is_one_of(layout.scale_type, {DType::kF32, DType::kF16, DType::kBF16, DType::kF8E4M3FN,
                                     DType::kF8E5M2, DType::kF8E8M0})) {
    return refuse(fmt::format("scales of type {} are not supported", name(layout.scale_type)));
  }
  if (layout.blocks() > 1 && layout.block % kSlab != 0) {
    return refuse(fmt::format("block_size {} is not a multiple of {}", layout.block, kSlab));
  }
  if (const DType zero = stored_zero_type(graph, problem); zero != DType::kUndefined) {
    layout.zero_type = is_floating(zero) ? DType::kF32 : is_signed(zero) ? DType::kI8 : DType::kU8;
    if (bit_width(zero) > 8 && !is_floating(zero))
      return refuse("zero points wider than 8 bits are not supported");
    if (!is_integer(layout.element))
      return refuse("float weights with a zero point are not supported");
  }
  if (layout.k % layout.group() != 0 && has_infinite_scale(graph, problem)) {
    return refuse("a scale is infinite, and padding would become NaN");
  }
  layout.use = choose_use(graph, problem, layout);
  const bool halves = problem.a_type == DType::kF16 && problem.dot.scale_a.scale == ir::kNoValue;
  layout.operand = halves && layout.use != ScaleUse::kSplit ? DType::kF16 : DType::kBF16;
  return {Support::yes(), layout};
}

GpuWeightBuffers pack_gpu_weight(const ir::Graph& graph, const ScaledDotProblem& problem,
                                 const GpuWeightLayout& layout, Lowered& lowered) {
  GpuWeightBuffers buffers;
  const auto packer = std::make_shared<const GpuWeightPacker>(graph, problem, layout);
  const auto runs = [&](int64_t count, DType type, int64_t elements,
                        void (GpuWeightPacker::*pack)(int64_t, std::byte*) const) {
    return keep(lowered, pack_runs(count, storage_bytes(type, elements),
                                   [=](int64_t number, std::byte* out) {
                                     (packer.get()->*pack)(number, out);
                                   }));
  };
  buffers.words =
      runs(layout.groups(), DType::kU32, kSlab * layout.padded_n, &GpuWeightPacker::pack_group);
  if (layout.scale_type != DType::kUndefined) {
    buffers.scales =
        runs(layout.blocks(), layout.scale_type, layout.padded_n, &GpuWeightPacker::pack_scales);
  }
  if (layout.zero_type != DType::kUndefined) {
    buffers.zeros =
        runs(layout.blocks(), layout.zero_type, layout.padded_n, &GpuWeightPacker::pack_zeros);
  }
  return buffers;
}

GpuWeightReader::GpuWeightReader(LaunchWriter& writer, const GpuWeightLayout& layout,
                                 const GpuWeightBuffers& buffers, int columns)
    : b_(writer.builder), layout_(layout), columns_(columns) {
  words_ = writer.buffer("weight", DType::kU32, buffers.words);
  if (layout.scale_type != DType::kUndefined) {
    scales_ = writer.buffer("scales", storage_type(layout.scale_type), buffers.scales);
  }
  if (layout.zero_type != DType::kUndefined) {
    zeros_ = writer.buffer("zeros", layout.zero_type, buffers.zeros);
  }
}

Tile GpuWeightReader::load_words(ValueId group) {
  const ValueId row = b_.mul(group, b_.index(kSlab * layout_.padded_n));
  return b_.load({words_, b_.add(row, column_), {b_.index(layout_.padded_n), b_.index(1)}, {}},
                 {kSlab, columns_});
}

ValueId GpuWeightReader::block_offset(ValueId block) {
  // The last group may have slabs past K, whose codes are zero.
  if (layout_.k % layout_.group() != 0) block = b_.min(block, b_.index(layout_.blocks() - 1));
  return b_.add(b_.mul(block, b_.index(layout_.padded_n)), column_);
}

Tile GpuWeightReader::dequantized_scale(Tile codes) {
  return b_.cast(dequantize_tile(b_, codes, layout_.scale_type), DType::kF32);
}

Tile GpuWeightReader::load_scale(ValueId block) {
  return dequantized_scale(b_.load({scales_, block_offset(block), {b_.index(1)}, {}}, {columns_}));
}

// Every row of the slab reads it anew: cheaper than passing it between threads.
Tile GpuWeightReader::load_for_slab(ValueId buffer, ValueId block) {
  return b_.load({buffer, block_offset(block), {b_.index(0), b_.index(1)}, {}}, {kSlab, columns_});
}

Tile GpuWeightReader::codes(Tile words, int j) {
  const auto all = [&](int64_t value) {
    return b_.integer_constant(DType::kU32, value, {kSlab, columns_});
  };
  if (j > 0) words = b_.binary(Fn::kShiftRight, words, all(j * layout_.bits));
  return b_.binary(Fn::kAnd, words, all((int64_t{1} << layout_.bits) - 1));
}

Tile GpuWeightReader::integers(Tile codes, ValueId block) {
  const auto all = [&](int64_t value) {
    return b_.integer_constant(DType::kI32, value, {kSlab, columns_});
  };
  Tile value = b_.bitcast(codes, DType::kI32);
  if (is_signed(layout_.element)) {
    const Tile top = all(32 - layout_.bits);
    value = b_.binary(Fn::kShiftRight, b_.binary(Fn::kShiftLeft, value, top), top);
  }
  if (layout_.zero_offset != 0 && zeros_ == kNone) value = b_.sub(value, all(layout_.zero_offset));
  if (zeros_ == kNone || layout_.zero_type == DType::kF32) return value;
  return b_.sub(value, b_.cast(load_for_slab(zeros_, block), DType::kI32));
}

// Sign, exponent and fraction of e2m1 stand in the f16 as they are; the exponents' biases differ by
// 14. Every other small float goes through f32.
Tile GpuWeightReader::small_floats(Tile codes) {
  const std::vector<int> shape = {kSlab, columns_};
  if (layout_.element != DType::kF4E2M1) {
    return as_operand(dequantize_tile(b_, b_.cast(codes, DType::kU8), layout_.element));
  }
  const auto field = [&](int64_t mask, int64_t shift) {
    const Tile bits = b_.binary(Fn::kAnd, codes, b_.integer_constant(DType::kU32, mask, shape));
    return b_.binary(Fn::kShiftLeft, bits, b_.integer_constant(DType::kU32, shift, shape));
  };
  const Tile bits = b_.cast(b_.binary(Fn::kOr, {field(8, 12), field(7, 9)}), DType::kU16);
  const Tile scaled =
      b_.mul({b_.bitcast(bits, DType::kF16), b_.constant(DType::kF16, 16384, shape)});
  return layout_.operand == DType::kF16 ? scaled : as_operand(b_.cast(scaled, DType::kF32));
}

Tile GpuWeightReader::as_operand(Tile f32) { return b_.cast(f32, layout_.operand); }

std::vector<Tile> GpuWeightReader::slab(Tile words, int j, ValueId block) {
  const Tile code = codes(words, j);
  const bool whole = is_integer(layout_.element);
  if (layout_.use != ScaleUse::kSplit) {
    Tile value =
        whole ? as_operand(b_.cast(integers(code, block), DType::kF32)) : small_floats(code);
    if (layout_.use == ScaleUse::kSlabs) {
      const Tile scale = dequantized_scale(load_for_slab(scales_, block));
      value = layout_.operand == DType::kF16
                  ? b_.mul(value, b_.cast(scale, DType::kF16))
                  : as_operand(b_.mul(b_.cast(value, DType::kF32), scale));
    }
    return {value};
  }
  Tile value = whole ? b_.cast(integers(code, block), DType::kF32)
                     : b_.cast(small_floats(code), DType::kF32);
  if (layout_.zero_type == DType::kF32) value = b_.sub(value, load_for_slab(zeros_, block));
  if (scales_ != kNone) value = b_.mul(value, dequantized_scale(load_for_slab(scales_, block)));
  return split_bf16(b_, value, layout_.parts());
}

}  // namespace tenon::kernels
