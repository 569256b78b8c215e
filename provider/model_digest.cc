#include "provider/model_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/hash.h"
#include "graph_partitioner/ir/text.h"

namespace tenon::provider {
namespace {

constexpr size_t kSampled = 4096;  // bytes at either end of a constant and of each stretch
constexpr size_t kStretch = size_t{1} << 20;  // of a large one: no hole is longer unseen
constexpr size_t kShownDigits = 16;

std::string sample_of(const ir::Tensor& tensor) {
  const std::span<const std::byte> all(tensor.data, tensor.bytes);
  if (all.size() <= 2 * kSampled) return hex(sha256(all));
  std::vector<std::byte> samples;
  for (size_t at = 0; at + kSampled < all.size(); at += kStretch) {
    const auto sample = all.subspan(at, kSampled);
    samples.insert(samples.end(), sample.begin(), sample.end());
  }
  const auto end = all.last(kSampled);
  samples.insert(samples.end(), end.begin(), end.end());
  return hex(sha256(samples));
}

}  // namespace

std::string model_digest(const ir::Graph& graph) {
  ir::Digests samples;
  size_t bytes = 0;
  for (ir::ValueId id = 0; id < static_cast<ir::ValueId>(graph.value_count()); ++id) {
    const ir::TensorPtr& constant = graph.value(id).constant;
    if (!constant || !samples.try_emplace(constant).second) continue;
    samples[constant] = sample_of(*constant);
    bytes += constant->bytes;
  }
  const size_t constants = samples.size();
  const std::string text = ir::print(graph, {.digests = &samples});
  // The first line has the graph's name, which the runtime makes up.
  const std::string digest = hex(sha256(std::string_view(text).substr(text.find('\n'))));
  return fmt::format("{} nodes, {} constants of {} bytes, sha256 {}", graph.order().size(),
                     constants, bytes, digest.substr(0, kShownDigits));
}

}  // namespace tenon::provider
