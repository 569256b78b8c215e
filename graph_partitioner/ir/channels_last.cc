#include "graph_partitioner/ir/channels_last.h"

#include <algorithm>
#include <numeric>

namespace tenon::ir {

std::vector<int64_t> to_channels_last(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.begin() + 2, perm.end());
  return perm;
}

std::vector<int64_t> to_channels_first(size_t rank) {
  std::vector<int64_t> perm(rank);
  std::iota(perm.begin(), perm.end(), 0);
  std::rotate(perm.begin() + 1, perm.end() - 1, perm.end());
  return perm;
}

}  // namespace tenon::ir
