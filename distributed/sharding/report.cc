#include "distributed/sharding/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace tenon::distributed {

std::string ShardingReport::text() const {
  std::string all = fmt::format("rank {} of {}: {} of {} bytes of constants\n", rank, ranks,
                                bytes(), constant_bytes);
  all += fmt::format("  by rank: {}\n", fmt::join(bytes_by_rank, " "));
  all += fmt::format("  whole on every rank: {}\n", whole_bytes);
  for (const WeightShare& weight : weights) {
    all += fmt::format("  weight {}: {}, {} of {} bytes\n", weight.name, weight.part, weight.bytes,
                       weight.whole_bytes);
  }
  for (const Exchange& exchange : exchanges) {
    all += fmt::format("  {} behind '{}': {} of {}, {} bytes\n", exchange.op, exchange.node,
                       exchange.elements.text(), name(exchange.dtype), exchange.bytes.text());
  }
  for (const CacheShare& cache : caches) {
    all += fmt::format("  caches '{}': {} heads\n", cache.symbol,
                       fmt::join(cache.heads_by_rank, ", "));
  }
  for (const HeldWhole& whole : wholes) {
    all += fmt::format("  whole '{}': {} ({} bytes)\n", whole.name, whole.reason, whole.bytes);
  }
  if (!tokens.empty()) all += fmt::format("  tokens: {}\n", tokens);
  for (const AnnotationAnswer& one : annotations) {
    all += fmt::format("  annotation of '{}': {}{}{}\n", one.node, one.asked,
                       one.asked.empty() || one.reason.empty() ? "" : ", ",
                       one.reason.empty() ? "" : "not followed: " + one.reason);
  }
  return all;
}

}  // namespace tenon::distributed
