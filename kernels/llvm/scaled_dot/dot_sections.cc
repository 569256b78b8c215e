#include "kernels/llvm/scaled_dot/dot_sections.h"

#include <algorithm>

#include <fmt/format.h>

#include "kernels/llvm/scaled_dot/packing_launches.h"
#include "kernels/llvm/scaled_dot/weight_source.h"

namespace tenon::kernels {
namespace {

constexpr size_t kNobody = SIZE_MAX;

// What one kernel can dequantise in the same way; accumulators may come out with different
// exponents.
bool dequantize_alike(FragmentLayout a, const FragmentLayout& b) {
  a.n = b.n;
  a.exponent = b.exponent;
  a.scale_shift = b.scale_shift;
  return a == b;
}

// The dot that reads the result of number `from`; kNobody: it goes to memory.
size_t reader_of(std::span<const DotPart> dots, size_t from) {
  for (size_t i = 0; i < dots.size(); ++i) {
    const std::vector<ir::ValueId>& extra = dots[i].problem.dot.extra;
    if (std::ranges::find(extra, dots[from].node.output(0)) != extra.end()) return i;
  }
  return kNobody;
}

// Which dots share units: numbers of those that give and of those that take.
struct Pairing {
  Support support = Support::yes();
  std::vector<size_t> giver;  // by dot; kNobody
  std::vector<bool> gives;
};

// What a body does not take element by element would be read before it is written.
bool reads_before_written(std::span<const DotPart> dots) {
  const auto is_result = [&](ir::ValueId id) {
    return id != ir::kNoValue && std::ranges::any_of(dots, [&](const DotPart& part) {
             return part.node.output(0) == id;
           });
  };
  return std::ranges::any_of(dots, [&](const DotPart& part) {
    return is_result(part.problem.dot.bias) || is_result(part.problem.dot.alpha);
  });
}

Pairing pair_up(std::span<const DotPart> dots) {
  Pairing pairing{.giver = std::vector<size_t>(dots.size(), kNobody),
                  .gives = std::vector<bool>(dots.size())};
  for (size_t i = 0; i < dots.size(); ++i) {
    const size_t reader = reader_of(dots, i);
    if (reader == kNobody) continue;
    if (pairing.giver[reader] != kNobody) {
      pairing.support = Support::no("one GEMM's epilogue reads the outputs of two others");
    }
    pairing.giver[reader] = i;
    pairing.gives[i] = true;
  }
  for (size_t i = 0; i < dots.size(); ++i) {
    if (pairing.gives[i] && pairing.giver[i] != kNobody) {
      pairing.support = Support::no("GEMMs depend on each other in a chain");
    }
  }
  if (reads_before_written(dots)) {
    pairing.support = Support::no("one GEMM's bias or alpha is another's output");
  }
  return pairing;
}

Support check_pair(const DotSection& section) {
  if (!section.is_paired()) return Support::yes();
  const FragmentLayout &first = section.parts[0].layout, &second = section.parts[1].layout;
  if (first.n != second.n) {
    return Support::no(
        fmt::format("paired weights have different N: {} and {}", first.n, second.n));
  }
  return Support::yes();
}

// One scale for the 128 rows of a unit is enough where all weights have such scales and no two
// share their units.
void agree_on_scales(std::vector<DotPart>& parts, const Pairing& pairing) {
  const auto shares = [](const DotPart& part) { return part.layout.shares_scales(); };
  const bool paired = std::ranges::find(pairing.gives, true) != pairing.gives.end();
  if (std::ranges::all_of(parts, shares) && !paired) return;
  for (DotPart& part : parts) {
    if (shares(part)) part.layout.scale = {FragmentLayout::Side::Kind::kColumn, 1};
  }
}

}  // namespace

bool DotSections::has_bodies() const {
  return std::ranges::any_of(sections, [](const DotSection& section) {
    return std::ranges::any_of(section.parts,
                               [](const DotPart& part) { return part.node.body != nullptr; });
  });
}

DotSections plan_sections(const ir::Graph& graph, std::vector<DotPart> parts, Precision precision) {
  DotSections plan;
  const auto refuse = [&](Support why) {
    plan.support = std::move(why);
    return plan;
  };
  for (DotPart& part : parts) {
    FragmentLayoutAnswer answer = fragment_layout(graph, part.problem, precision);
    if (!answer.support) return refuse(answer.support);
    part.layout = answer.layout;
  }
  const Pairing pairing = pair_up(parts);
  if (!pairing.support) return refuse(pairing.support);
  agree_on_scales(parts, pairing);
  for (const DotPart& part : parts) {
    if (dequantize_alike(part.layout, parts[0].layout)) continue;
    return refuse(Support::no("the weights have different formats"));
  }
  int64_t units = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (pairing.gives[i]) continue;
    DotSection section{{}, units};
    if (pairing.giver[i] != kNobody) section.parts.push_back(parts[pairing.giver[i]]);
    section.parts.push_back(parts[i]);
    if (Support pair = check_pair(section); !pair) return refuse(pair);
    units += section.units();
    plan.sections.push_back(std::move(section));
  }
  plan.layout = parts[0].layout;
  const DotSection& last = plan.sections.back();
  plan.layout.n = last.first_unit * kFragmentRows + last.rows();
  plan.support = Support::yes();
  return plan;
}

namespace {

// Units of all sections in a row, by what packs those of one weight.
PackRowUnit pack_all(const ir::Graph& graph, const DotSections& dots, const auto& packer_of) {
  struct Piece {
    PackUnit pack;
    int64_t first_unit, units;
    int half;
  };
  std::vector<Piece> pieces;
  for (const DotSection& section : dots.sections) {
    for (size_t i = 0; i < section.parts.size(); ++i) {
      const DotPart& part = section.parts[i];
      pieces.push_back({packer_of(graph, part.problem, part.layout), section.first_unit,
                        section.units(), section.is_paired() ? static_cast<int>(i) : -1});
    }
  }
  return [=](int64_t row_unit, int64_t step, uint32_t* words) {
    for (const Piece& piece : pieces) {
      const int64_t unit = row_unit - piece.first_unit;
      if (unit < 0 || unit >= piece.units) continue;
      const int64_t rows = piece.half < 0 ? kFragmentRows : kFragmentRows / 2;
      piece.pack({unit * rows, piece.half}, step, words);
    }
  };
}

}  // namespace

BufferArgument pack_sections(const ir::Graph& graph, DotSections& dots, Lowered& lowered) {
  for (DotSection& section : dots.sections) {
    for (DotPart& part : section.parts) {
      if (!part.layout.scales_accumulators) continue;
      part.column_scales = keep(lowered, column_scales(graph, part.problem, part.layout));
    }
  }
  if (dots.layout.sides_apart) {
    PackedConstant sides = pack_sides(dots.layout, pack_all(graph, dots, side_packer));
    sides.on_device = pack_sides_on_device(graph, dots);
    dots.sides = keep(lowered, std::move(sides));
  }
  PackedConstant units = pack_units(dots.layout, pack_all(graph, dots, unit_packer));
  units.on_device = pack_units_on_device(graph, dots);
  return keep(lowered, std::move(units));
}

}  // namespace tenon::kernels
