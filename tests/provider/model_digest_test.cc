// What ranks compare of their models before the first Run.
#include "provider/model_digest.h"

#include <gtest/gtest.h>

#include <vector>

namespace tenon::provider {
namespace {

std::string digest_of(const std::vector<std::byte>& bytes) {
  ir::Graph graph;
  const auto elements = static_cast<int64_t>(bytes.size());
  graph.add_output(graph.add_constant("w", ir::Tensor::copy(DType::kU8, {elements}, bytes)));
  return model_digest(graph);
}

// A download with a hole of zeros, anywhere.
TEST(ModelDigest, SeesAHoleOfAMegabyteWhereverItIs) {
  constexpr size_t kBytes = (size_t{5} << 20) + 12345, kHole = (size_t{1} << 20) + 4096;
  std::vector<std::byte> whole(kBytes);
  for (size_t i = 0; i < kBytes; ++i) whole[i] = static_cast<std::byte>(1 + i * 2654435761u % 251);
  const std::string expected = digest_of(whole);
  EXPECT_EQ(digest_of(whole), expected);
  for (size_t at = 0; at + kHole <= kBytes; at += 300001) {
    std::vector<std::byte> holed = whole;
    std::fill_n(holed.begin() + static_cast<std::ptrdiff_t>(at), kHole, std::byte{0});
    EXPECT_NE(digest_of(holed), expected) << at;
  }
}

TEST(ModelDigest, SeesEachByteOfASmallConstantAndTheEndsOfALargeOne) {
  for (const size_t bytes : {1, 100, 8192, 8193, 1 << 20, (1 << 20) + 4096}) {
    const std::vector<std::byte> whole(bytes, std::byte{7});
    for (const size_t at : {size_t{0}, bytes / 3, bytes - 1}) {
      if (bytes > 8192 && at == bytes / 3) continue;
      std::vector<std::byte> other = whole;
      other[at] = std::byte{8};
      EXPECT_NE(digest_of(other), digest_of(whole)) << bytes << ", " << at;
    }
  }
}

}  // namespace
}  // namespace tenon::provider
