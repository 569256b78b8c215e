// How a file wants its tensors dealt out: the sharding specs of ONNX IR 11. ONNX Runtime's graphs
// do not show them, so they are read from the file.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tenon::distributed {

// Dims of a tensor that are cut, a part for each rank; none: every rank has all of it.
using CutDims = std::vector<int64_t>;

// What a product, or a Gather of a table's rows, says of its tensors.
struct Annotation {
  std::string node;
  bool is_table = false;
  // The weight's names: the file's own, and those behind what dequantises or transposes it.
  std::vector<std::string> weights = {};
  // Dims may count from the back. A product's weight is [K, N] here, however it is stored.
  std::optional<CutDims> left = {}, weight = {}, result = {};
};

// Something in the file that is not done, and why.
struct UnfollowedAnnotation {
  std::string node;
  std::string reason;
};

struct Annotations {
  std::vector<Annotation> nodes;
  std::vector<UnfollowedAnnotation> unfollowed;
};

// Of the device configuration that has as many devices as there are ranks. Throws UserError where
// the bytes are no model.
Annotations read_annotations(std::span<const std::byte> model, int64_t ranks);

}  // namespace tenon::distributed
