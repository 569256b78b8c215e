// Convolutions over tensors that store the channels last, [n, h, w, c], as tensor cores read them:
//
//   tenon::ChannelsLastConv(x, w, bias, summand)   what com.microsoft::FusedConv is to [n, c, h, w]
//
// Attributes mean what they mean to FusedConv. w keeps ONNX's order: kernels pack it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tenon::ir {

inline constexpr std::string_view kChannelsLastConv = "tenon::ChannelsLastConv";
// How many channels x had before zeros made them more, which tensor cores read faster.
inline constexpr std::string_view kPaddedFrom = "padded_from";

// `perm` of a Transpose to that order.
std::vector<int64_t> to_channels_last(size_t rank);
std::vector<int64_t> to_channels_first(size_t rank);

template <typename Element>
std::vector<Element> permuted(const std::vector<Element>& list, const std::vector<int64_t>& perm) {
  std::vector<Element> made;
  for (const int64_t from : perm) made.push_back(list.at(static_cast<size_t>(from)));
  return made;
}

}  // namespace tenon::ir
