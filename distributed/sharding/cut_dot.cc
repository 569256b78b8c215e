#include "distributed/sharding/cut_dot.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "distributed/sharding/cut_tensor.h"

namespace tenon::distributed {
namespace {

using ir::Graph;
using ir::kNoValue;
using ir::ScaledDot;
using ir::TensorPtr;
using ir::ValueId;

constexpr int64_t kSmallestBlock = 16;  // of the formats that kernels read

int64_t ceil_of(int64_t a, int64_t b) { return (a + b - 1) / b; }

TensorPtr constant(const Graph& graph, ValueId id) {
  if (id == kNoValue || !graph.value(id).is_constant()) return nullptr;
  return graph.value(id).constant;
}

// One of the constants of a weight: channels (N) by steps along K, whichever lies in rows.
struct Sheet {
  TensorPtr tensor = nullptr;
  int64_t channels = 0, steps = 0;
  int bits = 0;
  int64_t row_bits = 0;
  bool has_channel_rows = true;
  bool hides_elements = false;  // bytes hold several; rows begin with a byte

  Rows rows() const {
    return has_channel_rows ? Rows{channels, steps, bits, row_bits}
                            : Rows{steps, channels, bits, row_bits};
  }
};

Sheet plain_sheet(const ScaledDot& dot, TensorPtr tensor, int64_t channels, int64_t steps) {
  Sheet sheet;
  sheet.channels = channels;
  sheet.steps = steps;
  sheet.has_channel_rows = dot.b_k_last;
  sheet.bits = bit_width(tensor->dtype);
  sheet.row_bits = (dot.b_k_last ? steps : channels) * sheet.bits;
  sheet.tensor = std::move(tensor);
  return sheet;
}

Sheet code_sheet(const Graph& graph, const ScaledDot& dot) {
  const auto [n, k] = weight_size(graph, dot);
  const TensorPtr b = constant(graph, dot.b);
  if (dot.b_dims.empty()) return plain_sheet(dot, b, n, k);
  Sheet sheet{.tensor = b, .channels = n, .steps = k, .hides_elements = true};
  sheet.bits = bit_width(dot.b_type);
  sheet.row_bits = static_cast<int64_t>(b->bytes) * 8 / n;
  return sheet;
}

bool hides_zero_points(const Graph& graph, const ScaledDot& dot) {
  return !dot.b_dims.empty() && is_packed(dot.b_type) &&
         graph.value(dot.scale_b.zero_point).dtype == DType::kU8;
}

int64_t steps_of(const Graph& graph, const ScaledDot& dot) {
  const int64_t block = dot.scale_b.block;
  return block == 0 ? 1 : ceil_of(weight_size(graph, dot).k, block);
}

// Scale or zero point. A null tensor: there is none, or one number serves all.
Sheet scale_sheet(const Graph& graph, const ScaledDot& dot, ValueId id) {
  const TensorPtr tensor = constant(graph, id);
  if (!tensor || !dot.scale_b.per_channel || tensor->elements() == 1) return {};
  const int64_t n = weight_size(graph, dot).n, steps = steps_of(graph, dot);
  if (id != dot.scale_b.zero_point || !hides_zero_points(graph, dot)) {
    return plain_sheet(dot, tensor, n, steps);
  }
  Sheet sheet{.tensor = tensor, .channels = n, .steps = steps, .hides_elements = true};
  sheet.bits = bit_width(dot.b_type);
  sheet.row_bits = ceil_of(steps * sheet.bits, 8) * 8;
  return sheet;
}

bool fits(const Sheet& sheet) {
  if (!sheet.tensor) return true;
  const auto bits = static_cast<int64_t>(sheet.tensor->bytes) * 8;
  const int64_t needed = sheet.rows().rows * sheet.row_bits;
  return needed <= bits && bits < needed + 8;
}

// The tensor's dims with its channels and steps replaced; those that are flat stay flat.
std::vector<int64_t> dims_of_part(const Sheet& sheet, int64_t channels, int64_t steps,
                                  int64_t row_bits) {
  const std::vector<int64_t>& dims = sheet.tensor->dims;
  const int64_t row = sheet.hides_elements ? row_bits / 8 : steps;
  const int64_t first = sheet.has_channel_rows ? channels : steps;
  const int64_t second = sheet.has_channel_rows ? row : channels;
  if (dims.size() < 2) return {first * second};
  std::vector<int64_t> part{first, second};
  part.resize(dims.size(), 1);
  return part;
}

TensorPtr take_columns(const Sheet& sheet, const Pieces& n) {
  if (!sheet.tensor) return nullptr;
  const int64_t channels = length(n);
  if (sheet.has_channel_rows) {
    std::vector<int64_t> dims = dims_of_part(sheet, channels, sheet.steps, sheet.row_bits);
    // Rows stay as they are, and with them how their dims tell blocks apart.
    if (sheet.tensor->dims[0] == sheet.channels) {
      dims = sheet.tensor->dims;
      dims[0] = channels;
    }
    return take(*sheet.tensor, sheet.rows(), n, {{0, sheet.steps}}, sheet.row_bits, dims);
  }
  const int64_t row_bits = channels * sheet.bits;
  return take(*sheet.tensor, sheet.rows(), {{0, sheet.steps}}, n, row_bits,
              dims_of_part(sheet, channels, sheet.steps, row_bits));
}

TensorPtr take_steps(const Sheet& sheet, const Pieces& steps, int64_t row_bits,
                     std::vector<int64_t> dims) {
  if (sheet.has_channel_rows) {
    return take(*sheet.tensor, sheet.rows(), {{0, sheet.channels}}, steps, row_bits,
                std::move(dims));
  }
  return take(*sheet.tensor, sheet.rows(), steps, {{0, sheet.channels}}, sheet.row_bits,
              std::move(dims));
}

TensorPtr take_codes(const Sheet& sheet, const Pieces& k, int64_t block) {
  const int64_t steps = length(k);
  if (!sheet.hides_elements) {
    return take_steps(sheet, k, steps * sheet.bits, dims_of_part(sheet, sheet.channels, steps, 0));
  }
  // [N, blocks, bytes of a block], or [N, bytes].
  const bool has_blocks = sheet.tensor->dims.size() == 3;
  const int64_t stored = has_blocks ? ceil_of(steps, block) * block : steps;
  const int64_t row_bits = ceil_of(stored * sheet.bits, 8) * 8;
  std::vector<int64_t> dims{sheet.channels, row_bits / 8};
  if (has_blocks) dims = {sheet.channels, stored / block, block * sheet.bits / 8};
  return take_steps(sheet, k, row_bits, std::move(dims));
}

// A scale for each of the new blocks, which lie within the old ones.
TensorPtr take_scales(const Sheet& sheet, const Pieces& k, int64_t old_block, int64_t block) {
  if (!sheet.tensor || old_block == 0) return nullptr;
  Pieces steps;
  for (const Range& piece : k) {
    for (int64_t at = piece.begin; at < piece.end; at += block) {
      const int64_t step = at / old_block;
      if (old_block == block && !steps.empty() && steps.back().end == step) {
        ++steps.back().end;
      } else {
        steps.push_back({step, step + 1});
      }
    }
  }
  const int64_t count = length(steps);
  const int64_t bits = count * sheet.bits;
  const int64_t row_bits = sheet.hides_elements ? ceil_of(bits, 8) * 8 : bits;
  return take_steps(sheet, steps, row_bits, dims_of_part(sheet, sheet.channels, count, row_bits));
}

Support check_sheets(const Graph& graph, const ScaledDot& dot) {
  for (const ValueId id : {dot.scale_b.scale, dot.scale_b.zero_point}) {
    if (id != kNoValue && !constant(graph, id)) {
      return Support::no(fmt::format("'{}' is no constant", graph.value(id).name));
    }
    if (!fits(scale_sheet(graph, dot, id))) {
      return Support::no(
          fmt::format("'{}' has an unexpected number of elements", graph.value(id).name));
    }
  }
  return fits(code_sheet(graph, dot)) ? Support::yes()
                                      : Support::no("its weight has an unexpected size");
}

}  // namespace

Support has_weight(const Graph& graph, const ir::Node& node) {
  if (node.body || node.outputs.size() != 1) return Support::no("it is fused already");
  const ScaledDot dot = ScaledDot::from(node);
  const auto &a = graph.value(dot.a).shape, &y = graph.value(node.output(0)).shape;
  if (!constant(graph, dot.b)) return Support::no("its right side is no constant");
  if (!a || !y || y->empty()) return Support::no("its shapes are not known");
  const bool is_matrix = dot.b_dims.size() == 2 || constant(graph, dot.b)->dims.size() == 2;
  return is_matrix ? Support::yes() : Support::no("its right side is no matrix");
}

WeightSize weight_size(const Graph& graph, const ScaledDot& dot) {
  const auto dims = dot.b_dims.empty() ? graph.value(dot.b).constant->dims : dot.b_dims;
  return dot.b_k_last ? WeightSize{dims[0], dims[1]} : WeightSize{dims[1], dims[0]};
}

size_t k_axis(const Graph& graph, const ScaledDot& dot) {
  const size_t rank = graph.value(dot.a).shape->size();
  return rank - (dot.a_k_first && rank > 1 ? 2 : 1);
}

Support can_cut_columns(const Graph& graph, const ScaledDot& dot) {
  return check_sheets(graph, dot);
}

int64_t block_for(const Graph& graph, const ScaledDot& dot, const Shares& k) {
  const int64_t size = weight_size(graph, dot).k;
  int64_t block = dot.scale_b.block;
  if (block == 0) return 0;
  for (const Pieces& pieces : k) {
    for (const Range& piece : pieces) {
      block = std::gcd(block, piece.begin);
      if (piece.end != size) block = std::gcd(block, piece.end);
    }
  }
  return block;
}

Support can_cut_rows(const Graph& graph, const ScaledDot& dot, const Shares& k) {
  if (Support sheets = check_sheets(graph, dot); !sheets) return sheets;
  if (dot.scale_a.block != 0) {
    return Support::no("its left side has scales for blocks of the summed dim");
  }
  const int64_t block = block_for(graph, dot, k);
  if (block != dot.scale_b.block && block < kSmallestBlock) {
    return Support::no(
        fmt::format("shares of its summed dim are no whole blocks of {}", dot.scale_b.block));
  }
  const Sheet codes = code_sheet(graph, dot);
  const bool is_byte_wise = std::ranges::all_of(k, [&](const Pieces& pieces) {
    return std::ranges::all_of(pieces, [&](const Range& piece) {
      return piece.begin * codes.bits % 8 == 0 && piece.size() * codes.bits % 8 == 0;
    });
  });
  return is_byte_wise || !codes.hides_elements
             ? Support::yes()
             : Support::no("shares of its summed dim are no whole bytes");
}

WeightPart columns_of(const Graph& graph, const ScaledDot& dot, const Pieces& n) {
  return {take_columns(code_sheet(graph, dot), n),
          take_columns(scale_sheet(graph, dot, dot.scale_b.scale), n),
          take_columns(scale_sheet(graph, dot, dot.scale_b.zero_point), n)};
}

WeightPart rows_of(const Graph& graph, const ScaledDot& dot, const Pieces& k, int64_t block) {
  const int64_t old_block = dot.scale_b.block;
  return {take_codes(code_sheet(graph, dot), k, block),
          take_scales(scale_sheet(graph, dot, dot.scale_b.scale), k, old_block, block),
          take_scales(scale_sheet(graph, dot, dot.scale_b.zero_point), k, old_block, block)};
}

}  // namespace tenon::distributed
