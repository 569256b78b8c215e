#include "base/hash.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tenon {
namespace {

// The examples of FIPS 180-4 and the lengths around a block's end.
TEST(Hash, AgreesWithTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  EXPECT_EQ(hex(sha256(std::string(55, 'a'))),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(hex(sha256(std::string(56, 'a'))),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(hex(sha256(std::string(64, 'a'))),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

// Lengths around every end of a block, long ones, and beginnings that are not aligned.
TEST(Hash, InstructionsAgreeWithPlainCode) {
  const AbsorbBlocks by_instructions = absorb_by_instructions();
  if (by_instructions == nullptr) GTEST_SKIP() << "this processor has none for SHA-256";
  std::mt19937 random(7);
  std::vector<std::byte> bytes(70000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int i = 0; i < 600; ++i) {
    const size_t length = i < 300 ? i : random() % (bytes.size() - 64);
    const std::span<const std::byte> some(bytes.data() + i % 64, length);
    ASSERT_EQ(hex(sha256(some, by_instructions)), hex(sha256(some, absorb_plain))) << length;
  }
}

TEST(Hash, OfTwoMessagesAtOnce) {
  std::mt19937 random(11);
  std::vector<std::byte> bytes(70000);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (int i = 0; i < 400; ++i) {
    const size_t length = i < 200 ? i : random() % (bytes.size() - 128);
    const std::span<const std::byte> first(bytes.data() + i % 64, length);
    const std::span<const std::byte> second(bytes.data() + 64 + i % 31, length);
    const auto [a, b] = sha256_pair(first, second);
    ASSERT_EQ(hex(a), hex(sha256(first, absorb_plain))) << length;
    ASSERT_EQ(hex(b), hex(sha256(second, absorb_plain))) << length;
  }
  const std::span<const std::byte> all(bytes);
  const auto [longer, shorter] = sha256_pair(all, all.first(3));
  EXPECT_EQ(hex(longer), hex(sha256(all)));
  EXPECT_EQ(hex(shorter), hex(sha256(all.first(3))));
}

}  // namespace
}  // namespace tenon
