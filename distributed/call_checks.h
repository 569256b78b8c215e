// What every engine's calls are checked for before anybody is waited for. What is wrong is a
// UserError that names the call, the argument and its value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/support.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

// The arguments of one call of `op` on a communicator of `size` ranks.
class CallChecks {
 public:
  CallChecks(std::string_view op, int rank, int size) : op_(op), rank_(rank), size_(size) {}

  void count(int64_t count, DType dtype) const;
  int64_t counts(std::span<const int64_t> counts, DType dtype) const;  // the sum
  void in_range(std::string_view what, int rank) const;                // "root", "peer"
  void another(std::string_view what, int rank) const;                 // in range and not this rank
  void pairs(std::span<const std::pair<int, int>> pairs) const;
  void groups(std::span<const std::vector<int>> groups) const;
  void supported(const Support& answer) const;
  void memory(std::string_view what, const void* memory, int64_t elements) const;
  // in and out share no byte, or exactly those that may be shared: `same` is where the smaller of
  // the two begins in the other one, in elements.
  struct Buffers {
    const void* in;
    int64_t in_elements;
    const void* out;
    int64_t out_elements;
  };
  void apart(const Buffers& buffers, DType dtype, std::optional<int64_t> same = std::nullopt) const;

 private:
  [[noreturn]] void refuse(std::string_view why) const;

  std::string_view op_;
  int rank_, size_;
};

// For CollectiveCall::detail; empty where all counts are equal.
std::string counts_text(std::span<const int64_t> counts);            // "counts 3, 0, 5"
std::string pairs_text(std::span<const std::pair<int, int>> pairs);  // "0 to 1, 1 to 0"
std::string groups_text(std::span<const std::vector<int>> groups);   // "groups 0 1 | 2 3"

}  // namespace tenon::distributed
