#include "kernels/reference/heads.h"

#include "base/error.h"

namespace tenon::kernels::reference {
namespace {

constexpr std::string_view kCanonical = "bhsd";

// The letters of a 4-D layout; packed heads are "bshd" under another shape.
std::string_view letters(std::string_view layout) {
  if (layout == "bs(hd)") return "bshd";
  if (layout != "bhsd" && layout != "bshd" && layout != "bhds") {
    throw UserError("unknown layout of heads: " + std::string(layout));
  }
  return layout;
}

}  // namespace

ReferenceTensor to_heads(const ReferenceTensor& x, std::string_view layout, int64_t heads) {
  ReferenceTensor split = x;
  if (layout == "bs(hd)") {
    split.dims = {x.dims.at(0), x.dims.at(1), heads, x.dims.at(2) / heads};
  }
  const std::string_view from = letters(layout);
  Dims dims;
  for (const char letter : kCanonical) dims.push_back(split.dims.at(from.find(letter)));
  return remap(split, dims, [&](const Index& index) {
    Index at(4);
    for (size_t i = 0; i < 4; ++i) at[from.find(kCanonical[i])] = index[i];
    return flat_index(split.dims, at);
  });
}

ReferenceTensor from_heads(const ReferenceTensor& x, std::string_view layout) {
  const std::string_view to = letters(layout);
  Dims dims;
  for (const char letter : to) dims.push_back(x.dims.at(kCanonical.find(letter)));
  ReferenceTensor y = remap(x, dims, [&](const Index& index) {
    Index at(4);
    for (size_t i = 0; i < 4; ++i) at[kCanonical.find(to[i])] = index[i];
    return flat_index(x.dims, at);
  });
  if (layout == "bs(hd)") y.dims = {dims[0], dims[1], dims[2] * dims[3]};
  return y;
}

}  // namespace tenon::kernels::reference
