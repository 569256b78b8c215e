#include "kernels/cudnn/window.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "graph_partitioner/ir/channels_last.h"

namespace tenon::cudnn {
namespace {

// As the first spatial dim.
void add_spatial(std::vector<int64_t>& list, int64_t value) {
  list.push_back(value);
  std::ranges::rotate(list, list.end() - 1);
}

bool any_below(const std::vector<int64_t>& list, int64_t least) {
  return std::ranges::any_of(list, [&](int64_t value) { return value < least; });
}

}  // namespace

WindowAnswer window_of(const ir::Node& node, std::vector<int64_t> kernel) {
  const size_t rank = kernel.size();
  const auto no = [](std::string why) { return WindowAnswer{Support::no(std::move(why)), {}}; };
  if (rank < 1 || rank > 3) return no(fmt::format("cuDNN takes 1 to 3 spatial dims, not {}", rank));
  WindowForm form;
  form.kernel = std::move(kernel);
  form.strides = node.integers("strides");
  form.dilations = node.integers("dilations");
  form.auto_pad = node.text("auto_pad", "NOTSET");
  form.ceil_mode = node.integer("ceil_mode", 0) != 0;
  std::vector<int64_t> pads = node.integers("pads");
  if (form.strides.empty()) form.strides.assign(rank, 1);
  if (form.dilations.empty()) form.dilations.assign(rank, 1);
  if (pads.empty() || form.auto_pad == "VALID") pads.assign(2 * rank, 0);
  if (form.strides.size() != rank || form.dilations.size() != rank || pads.size() != 2 * rank) {
    return no("strides, dilations, pads and the kernel have different ranks");
  }
  if (any_below(form.kernel, 1) || any_below(form.strides, 1) || any_below(form.dilations, 1)) {
    return no("an extent, stride or dilation is below 1");
  }
  if (any_below(pads, 0)) return no(fmt::format("cuDNN takes no negative pads ({})", pads));
  form.pads_before.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(rank));
  form.pads_after.assign(pads.begin() + static_cast<std::ptrdiff_t>(rank), pads.end());
  if (rank == 1) {
    for (auto* ones : {&form.kernel, &form.strides, &form.dilations}) add_spatial(*ones, 1);
    for (auto* zeros : {&form.pads_before, &form.pads_after}) add_spatial(*zeros, 0);
  }
  return {Support::yes(), std::move(form)};
}

std::vector<int64_t> with_two_spatial(std::span<const int64_t> dims) {
  if (dims.size() == 3) return {dims[0], dims[1], 1, dims[2]};
  return {dims.begin(), dims.end()};
}

std::vector<int64_t> in_onnx_order(std::span<const int64_t> stored, bool channels_last) {
  if (!channels_last) return with_two_spatial(stored);
  return ir::permuted(std::vector<int64_t>(stored.begin(), stored.end()),
                      ir::to_channels_first(stored.size()));
}

Window resolve(const WindowForm& form, std::span<const int64_t> x, std::span<const int64_t> y) {
  Window window{form.pads_before, form.pads_after, form.strides};
  for (size_t i = 0; i < form.kernel.size(); ++i) {
    const int64_t reach = checked_add(checked_mul(form.dilations[i], form.kernel[i] - 1), 1);
    const int64_t covered = checked_add(checked_mul(y[2 + i] - 1, form.strides[i]), reach);
    int64_t& before = window.pads_before[i];
    int64_t& after = window.pads_after[i];
    if (form.auto_pad == "SAME_UPPER" || form.auto_pad == "SAME_LOWER") {
      const int64_t total = std::max<int64_t>(covered - x[2 + i], 0);
      before = form.auto_pad == "SAME_UPPER" ? total / 2 : total - total / 2;
      after = total - before;
    } else {
      // The last window may reach over the end: rounded up, or the only one on a small image.
      after = std::max(after, covered - x[2 + i] - before);
    }
  }
  return window;
}

}  // namespace tenon::cudnn
