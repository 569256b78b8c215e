#include "graph_partitioner/ir/transposed_window.h"

#include <algorithm>
#include <string>

namespace tenon::ir {
namespace {

using Numbers = std::vector<int64_t>;

// The attribute's numbers, or `count` times `otherwise`; none where one is below `least`.
Numbers numbers_of(const Node& node, const char* name, size_t count, int64_t otherwise,
                   int64_t least) {
  Numbers found = node.integers(name);
  if (found.empty()) found.assign(count, otherwise);
  if (std::ranges::any_of(found, [&](int64_t each) { return each < least; })) found.clear();
  return found;
}

// What the result would be long without pads.
Dim unpadded(const TransposedWindow& window, const Dim& dim, size_t i) {
  const int64_t reach = window.dilations[i] * (window.kernel[i] - 1) + 1;
  return (dim - 1) * window.strides[i] + (window.added[i] + reach);
}

void cut(TransposedWindow& window, int64_t total, bool more_in_front) {
  const int64_t half = total / 2;
  window.pads_before.push_back(more_in_front ? total - half : half);
  window.pads_after.push_back(more_in_front ? half : total - half);
}

// As the runtime deals them: odd ones go in front but for SAME_UPPER.
bool deal_pads(TransposedWindow& window, const Node& node, const Shape& x) {
  const size_t rank = window.rank();
  const std::string auto_pad = node.text("auto_pad", "NOTSET");
  const Numbers wanted = node.integers("output_shape");
  if (!wanted.empty() && wanted.size() != rank) return false;
  if (wanted.empty() && (auto_pad == "NOTSET" || auto_pad == "VALID")) {
    Numbers pads(2 * rank, 0);
    if (auto_pad == "NOTSET") pads = numbers_of(node, "pads", 2 * rank, 0, 0);
    if (pads.size() != 2 * rank) return false;
    const auto middle = pads.begin() + static_cast<std::ptrdiff_t>(rank);
    window.pads_before.assign(pads.begin(), middle);
    window.pads_after.assign(middle, pads.end());
    return true;
  }
  const bool is_upper = auto_pad == "SAME_UPPER";
  if (wanted.empty() && !is_upper && auto_pad != "SAME_LOWER") return false;
  for (size_t i = 0; i < rank; ++i) {
    const Dim goal = wanted.empty() ? x[2 + i] * window.strides[i] : Dim(wanted[i]);
    const Dim total = unpadded(window, x[2 + i], i) - goal;
    if (!total.is_constant()) return false;
    cut(window, std::max<int64_t>(total.value(), 0), !is_upper);
    if (!wanted.empty()) window.added[i] += std::max<int64_t>(-total.value(), 0);
  }
  return true;
}

}  // namespace

std::optional<TransposedWindow> transposed_window(const Node& node, const Shape& x,
                                                  const Shape& w) {
  if (x.size() < 3 || w.size() != x.size()) return std::nullopt;
  const Shape spatial(w.begin() + 2, w.end());
  if (!is_static(spatial)) return std::nullopt;
  const size_t rank = spatial.size();
  TransposedWindow window;
  window.kernel = static_dims(spatial);
  const Numbers named = node.integers("kernel_shape");
  if (!named.empty() && named != window.kernel) return std::nullopt;
  window.strides = numbers_of(node, "strides", rank, 1, 1);
  window.dilations = numbers_of(node, "dilations", rank, 1, 1);
  window.added = numbers_of(node, "output_padding", rank, 0, 0);
  for (const Numbers* list : {&window.strides, &window.dilations, &window.added}) {
    if (list->size() != rank) return std::nullopt;
  }
  if (!deal_pads(window, node, x)) return std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    window.extents.push_back(unpadded(window, x[2 + i], i) -
                             (window.pads_before[i] + window.pads_after[i]));
  }
  return window;
}

}  // namespace tenon::ir
