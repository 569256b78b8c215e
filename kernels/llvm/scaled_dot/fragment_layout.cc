// Which order and which sides a weight gets, or why it has none.
#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/convert.h"
#include "kernels/llvm/scaled_dot/fragment_weight.h"
#include "kernels/llvm/scaled_dot/weight_source.h"
#include "kernels/llvm/split_parts.h"

namespace tenon::kernels {
namespace {

using Side = FragmentLayout::Side;

bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Where the model itself multiplies that type of 16 bits, its DequantizeLinear rounds to it. Rows
// of 16 bits under a wider result are exact instead, and so must be their weights.
bool may_round(const ScaledDotProblem& problem) {
  return is_half(problem.a_type) && problem.a_type == problem.y_type;
}

// Integers are packed as unsigned codes.
DType packed_codes(DType element) {
  switch (element) {
    case DType::kI4:
      return DType::kU4;
    case DType::kI2:
      return DType::kU2;
    case DType::kI8:
      return DType::kU8;
    default:
      return element;
  }
}

// How often a row's scale changes within a unit.
int per_row(int64_t block, int64_t blocks) {
  if (blocks == 1 || block % 64 == 0) return 1;
  if (block % 32 == 0) return 2;
  return block % 16 == 0 ? 4 : 0;
}

std::span<const uint8_t> codes_of(const ir::Tensor& bytes) {
  return {reinterpret_cast<const uint8_t*>(bytes.data), bytes.bytes};
}

// Calls `look(codes, length)` for pieces until one answers true; returns whether one did. The
// length of all but the last is a constant: a loop over so many codes without a way out runs in
// vectors.
template <typename Look>
bool look_through(const ir::Tensor& bytes, const Look& look) {
  constexpr size_t kPiece = 1 << 14;
  std::span<const uint8_t> rest = codes_of(bytes);
  for (; rest.size() >= kPiece; rest = rest.subspan(kPiece)) {
    if (look(rest.data(), std::integral_constant<size_t, kPiece>())) return true;
  }
  return look(rest.data(), rest.size());
}

template <typename Wanted>
bool any_code(const ir::Tensor& bytes, std::string_view question, const Wanted& wanted) {
  const auto search = [&]() -> int64_t {
    const bool found = look_through(bytes, [&](const uint8_t* codes, auto length) {
      uint8_t any = 0;
      for (size_t i = 0; i < length; ++i) any |= static_cast<uint8_t>(wanted(codes[i]));
      return any != 0;
    });
    return found ? 1 : 0;
  };
  return bytes.facts->ask(question, search) != 0;
}

// The lowest and the highest one.
std::pair<int, int> range_of_codes(const ir::Tensor& bytes) {
  const auto search = [&]() -> int64_t {
    uint8_t lowest = 255, highest = 0;
    look_through(bytes, [&](const uint8_t* codes, auto length) {
      uint8_t least = lowest, most = highest;
      for (size_t i = 0; i < length; ++i) {
        least = std::min(least, codes[i]);
        most = std::max(most, codes[i]);
      }
      lowest = least;
      highest = most;
      return false;
    });
    return lowest * 256 + highest;
  };
  const int64_t both = bytes.facts->ask("range of codes", search);
  return {static_cast<int>(both / 256), static_cast<int>(both % 256)};
}

// Codes that the rules' bit moves cannot express.
Support check_elements(const ir::Tensor& tensor, const FormatRule& rule) {
  const auto refuse_if = [&](std::string_view question, auto wanted) {
    return any_code(tensor, question, wanted)
               ? Support::no(fmt::format("the {} weight holds NaN or infinity", name(rule.codes)))
               : Support::yes();
  };
  if (rule.codes == DType::kF8E4M3FN) {
    return refuse_if("NaN of e4m3", [](uint8_t c) { return (c & 127) == 127; });
  }
  if (rule.codes == DType::kF8E5M2 && rule.operand == DType::kBF16) {
    return refuse_if("NaN or infinity of e5m2", [](uint8_t c) { return (c & 0x7c) == 0x7c; });
  }
  return Support::yes();
}

// Chooses the shift of e8m0 scales; the products of every element and scale must be exact.
Support fit_exponents(const ir::Tensor& scales, FragmentLayout& layout) {
  const auto [lowest, highest] = range_of_codes(scales);
  if (highest == 255) return Support::no("a scale is NaN");
  const int least = lowest - 127, most = highest - 127;
  const FormatRule& element = *layout.element;
  const bool half = layout.operand == DType::kF16;
  const int top = half ? 16 : 128, bottom = half ? -24 : -133;
  layout.scale_shift = std::min(top - 1 - most, top - element.highest - element.exponent - most);
  if (least + layout.scale_shift < layout.scale_rule->lowest ||
      element.lowest + element.exponent + least + layout.scale_shift < bottom) {
    return Support::no(fmt::format("scales from 2^{} to 2^{} are out of range for {} operands",
                                   least, most, name(layout.operand)));
  }
  layout.exponent = element.exponent + layout.scale_shift;
  return Support::yes();
}

// Whether all rows of a unit have the same scales.
bool rows_share_scales(const ir::Tensor& tensor, const ScaleReader& scales, bool k_last,
                       const FragmentLayout& layout) {
  const auto search = [&]() -> int64_t {
    for (int64_t n = 0; n < layout.n; ++n) {
      for (int64_t block = 0; block < layout.blocks(); ++block) {
        const int64_t first = n / kFragmentRows * kFragmentRows;
        if (scales.code(block, n) != scales.code(block, first)) return 0;
      }
    }
    return 1;
  };
  const std::string question = fmt::format("rows of {} x {} blocks share, {}", layout.n,
                                           layout.blocks(), k_last ? "k last" : "k first");
  return tensor.facts->ask(question, search) != 0;
}

// Scales whose products with elements are operands without rounding.
Support plan_exact_scales(const ir::Tensor& scales, FragmentLayout& layout) {
  const bool exact =
      layout.scale_type == DType::kF8E8M0 ||
      (layout.scale_type == DType::kF8E4M3FN && layout.element->codes == DType::kF4E2M1);
  layout.scale_rule = exact ? scale_rule(layout.scale_type, layout.operand) : nullptr;
  if (!layout.scale_rule) {
    return Support::no(fmt::format(
        "{} scales on {} weights are not exact in {}: block_size must be a multiple of {}",
        name(layout.scale_type), name(layout.element->codes), name(layout.operand),
        kFragmentDepth));
  }
  layout.scale = {Side::Kind::kBytes, std::max(2, per_row(layout.block, layout.blocks()))};
  if (layout.scale_type == DType::kF8E8M0) return fit_exponents(scales, layout);
  layout.exponent = layout.element->exponent + (layout.operand == DType::kF16 ? 0 : 118);
  return any_code(scales, "negative or NaN of e4m3", [](uint8_t c) { return c >= 127; })
             ? Support::no("a scale is negative or NaN")
             : Support::yes();
}

// One scale for a row multiplies its accumulators. Integers times their scale are rounded where the
// model does so; nothing else is: what is not exact multiplies the accumulators of its block.
Support plan_scales(const ir::Graph& graph, const ScaledDotProblem& problem,
                    FragmentLayout& layout) {
  const ir::Tensor& scales = *graph.value(problem.dot.scale_b.scale).constant;
  const int in_row = per_row(layout.block, layout.blocks());
  if (in_row == 0) {
    return Support::no(fmt::format("block_size {} is not a multiple of 16", layout.block));
  }
  if (has_infinite_scale(graph, problem)) {
    return Support::no("a scale is infinite, and padding would become NaN");
  }
  const bool rounds = is_integer(layout.element->codes) && may_round(problem);
  const bool same = layout.scale_type == layout.operand;
  if (layout.blocks() == 1 && !(rounds && (same || layout.real_zeros))) {
    layout.scales_accumulators = true;
    return Support::yes();
  }
  if (rounds) {
    layout.scale = {same ? Side::Kind::kHalves : Side::Kind::kFloats, in_row};
    return Support::yes();
  }
  if (plan_exact_scales(scales, layout)) return Support::yes();
  const ScaleReader reader = ScaleReader::scales(graph, problem);
  layout.scale_rule = nullptr;
  layout.exponent = layout.element->exponent;
  const bool share = in_row == 1 && rows_share_scales(scales, reader, problem.dot.b_k_last, layout);
  layout.scale = {share ? Side::Kind::kShared : Side::Kind::kColumn, in_row};
  return Support::yes();
}

// Whether zero points that are stored as floats are codes after all.
bool are_codes(const ir::Tensor& zeros, const FormatRule& element) {
  const double most = element.bits < 8 ? 127 : 255;
  const auto search = [&]() -> int64_t {
    for (int64_t i = 0; i < zeros.elements(); ++i) {
      const double zero = load_element(zeros.dtype, zeros.data, i);
      if (!(zero >= 0 && zero <= most && zero == std::floor(zero))) return 0;
    }
    return 1;
  };
  return zeros.facts->ask(fmt::format("whole numbers up to {}", most), search) != 0;
}

// Before the scales: what is taken from real zero points is not exact, so that scales multiply it
// before it is rounded.
Support plan_zero_type(const ir::Graph& graph, const ScaledDotProblem& problem,
                       FragmentLayout& layout) {
  const DType zero = stored_zero_type(graph, problem);
  if (zero == DType::kUndefined) return Support::yes();
  const auto refuse = [&](std::string_view why) {
    return Support::no(
        fmt::format("{} zero points of {} weights{}", name(zero), name(problem.b_type), why));
  };
  if (!is_integer(problem.b_type) || is_small_float(zero)) return refuse("");
  if (!is_floating(zero)) return bit_width(zero) > 8 ? refuse("") : Support::yes();
  const ir::Tensor& zeros = *graph.value(problem.dot.scale_b.zero_point).constant;
  layout.real_zeros = is_signed(problem.b_type) || !are_codes(zeros, *layout.element);
  if (!layout.real_zeros) return Support::yes();
  if (!may_round(problem)) {
    return refuse(fmt::format(" that are not integers are not exact with {} results of {} rows",
                              name(problem.y_type), name(problem.a_type)));
  }
  if (layout.scale_type == DType::kUndefined) return refuse(" without scales");
  return contains_infinity(zeros, zero) ? refuse(" are infinite, and padding would become NaN")
                                        : Support::yes();
}

void plan_zeros(const ir::Graph& graph, const ScaledDotProblem& problem, FragmentLayout& layout) {
  const DType zero = stored_zero_type(graph, problem);
  if (zero == DType::kUndefined) return;
  if (layout.real_zeros) {
    layout.zero = {zero == layout.operand ? Side::Kind::kHalves : Side::Kind::kFloats,
                   layout.scale.per_row};
    return;
  }
  const bool small = layout.element->bits == 2;
  layout.zero = {small ? Side::Kind::kNibbles : Side::Kind::kBytes,
                 std::max(2, layout.scale.per_row)};
  layout.zero_offset = 0;
}

// Bytes of a row's sides against those of its codes in 64 k: in every unit, and in the file.
bool repeats_too_much(const ir::Graph& graph, const ScaledDotProblem& problem,
                      const FragmentLayout& layout) {
  constexpr double kMostGrowth = 1.05;
  const auto width = [](DType type) { return type == DType::kUndefined ? 0 : bit_width(type); };
  const double codes = kFragmentDepth * layout.element->bits;
  const double repeated = layout.side_words() * 32.0 / kFragmentRows;
  const auto length = static_cast<double>(layout.blocks() == 1 ? layout.k : layout.block);
  const double stored = width(layout.scale_type) + width(stored_zero_type(graph, problem));
  return codes + repeated > kMostGrowth * (codes + stored * kFragmentDepth / length);
}

// Blocks of whole units, so many that stages begin with a block or lie in one.
bool may_stand_apart(const FragmentLayout& layout) {
  const auto block = static_cast<uint64_t>(layout.block);
  const bool large = layout.block > kFragmentDepth && std::has_single_bit(block);
  return layout.side_words() > 0 && !layout.shares_scales() && (layout.blocks() == 1 || large);
}

}  // namespace

int FragmentLayout::Side::words() const {
  switch (kind) {
    case Kind::kNone:
      return 0;
    case Kind::kNibbles:
      return kFragmentRows * per_row / 8;
    case Kind::kBytes:
      return kFragmentRows * per_row / 4;
    case Kind::kHalves:
      return kFragmentRows * per_row / 2;
    case Kind::kShared:
      return 4;
    default:
      return kFragmentRows * per_row;
  }
}

bool FragmentLayout::can_accumulate_per_block() const {
  if (element == nullptr || operand != DType::kF16 || zero.kind != Side::Kind::kNone || lift != 0) {
    return false;
  }
  if (element->codes == DType::kF4E2M1) return scale.kind == Side::Kind::kBytes;
  return element->codes == DType::kU4 && scale.kind == Side::Kind::kHalves && !sides_apart;
}

std::array<double, 2> FragmentLayout::row_offsets() const {
  std::array<double, 2> offsets{};
  for (size_t pair = 0; pair < element->pairs.size(); ++pair) {
    const double offset = element->pairs[pair].offset + zero_offset;
    if (pair >= 2 && offset != offsets[pair % 2]) return {};
    offsets[pair % 2] = offset;
  }
  return offsets;
}

int FragmentLayout::units_together(int units) const {
  const int64_t in_block = std::max<int64_t>(1, block / kFragmentDepth);
  if (units % in_block == 0) return static_cast<int>(in_block);
  return in_block % units == 0 ? units : 1;
}

FragmentLayoutAnswer fragment_layout(const ir::Graph& graph, const ScaledDotProblem& problem,
                                     Precision precision) {
  FragmentLayoutAnswer answer;
  FragmentLayout& layout = answer.layout;
  const auto end = [&](Support support) {
    answer.support = std::move(support);
    return answer;
  };
  if (!is_half(problem.a_type) && problem.a_type != DType::kF32) {
    return end(
        Support::no(fmt::format("activations of type {} are not supported", name(problem.a_type))));
  }
  if (Support constant = has_constant_scales(graph, problem); !constant) return end(constant);
  const bool is_plain_f32 =
      problem.a_type == DType::kF32 && problem.b_type == DType::kF32 && !problem.has_scale_b();
  const bool as_tf32 = precision == Precision::kTf32 && is_plain_f32;
  layout.operand = is_half(problem.a_type) || as_tf32 ? problem.a_type : DType::kBF16;
  layout.row_terms = problem.a_type == layout.operand ? 1 : bf16_parts(problem.a_type);
  layout.widens = is_half(problem.a_type) && problem.y_type == DType::kF32;
  layout.k = problem.k.value();
  layout.n = problem.n.value();
  layout.block = problem.block();
  if (layout.k == 0 || layout.n == 0) return end(Support::no("N or K is 0"));
  if (problem.b_type == layout.operand && !problem.has_scale_b()) return end(Support::yes());
  layout.element = element_rule(packed_codes(problem.b_type), layout.operand);
  if (!layout.element) {
    return end(Support::no(fmt::format("no packed layout for {} weights with {} activations",
                                       name(problem.b_type), name(problem.a_type))));
  }
  layout.exponent = layout.element->exponent;
  if (Support elements = check_elements(*graph.value(problem.dot.b).constant, *layout.element);
      !elements) {
    return end(elements);
  }
  const bool whole = is_integer(problem.b_type);
  layout.zero_offset = static_cast<double>(problem.dot.scale_b.zero_offset);
  if (whole && is_signed(problem.b_type)) layout.zero_offset += 1 << (layout.element->bits - 1);
  layout.scale_type = packed_scale_type(graph, problem.dot.scale_b);
  if (Support zeros = plan_zero_type(graph, problem, layout); !zeros) return end(zeros);
  if (layout.scale_type != DType::kUndefined) {
    if (Support scales = plan_scales(graph, problem, layout); !scales) return end(scales);
  }
  plan_zeros(graph, problem, layout);
  layout.sides_apart = may_stand_apart(layout) && repeats_too_much(graph, problem, layout);
  // Accumulators of numbers near 2^-120 would lose their last bits.
  const bool scales_elements = layout.scale.words() > 0 && !layout.scales_blocks();
  if (layout.operand == DType::kBF16 && !scales_elements) {
    layout.lift = -std::exchange(layout.exponent, 0);
  }
  return end(Support::yes());
}

}  // namespace tenon::kernels
