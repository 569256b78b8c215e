// Pitches of shared memory, by what each of them costs.
#include "codegen/exchange.h"

#include <gtest/gtest.h>

namespace tenon::codegen {
namespace {

const auto kSame = [](int64_t element) { return element; };

TEST(ExchangeTest, NoPitchNearbyIsBetter) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kU8, DType::kF64}) {
    for (auto [rows, columns] : {std::pair{64, 64}, {32, 33}, {16, 128}, {7, 24}}) {
      Type tile = Type::tile(dtype, {rows, columns});
      Layout dealt = Layout::dealt(tile.shape, 128), mma = Layout::mma(tile.shape, 128, true);
      auto turned = [=](int64_t e) { return e % rows * columns + e / rows; };
      Layout across = Layout::dealt({columns, rows}, 128);
      int pitch = exchange_pitch(tile, dealt, mma, kSame);
      int turned_pitch = exchange_pitch(tile, dealt, across, turned);
      EXPECT_GE(pitch, columns);
      EXPECT_LE(exchange_price(tile, dealt, mma, kSame, pitch),
                exchange_price(tile, dealt, mma, kSame, columns));
      EXPECT_LE(exchange_price(tile, dealt, across, turned, turned_pitch),
                exchange_price(tile, dealt, across, turned, columns));
    }
  }
}

// 32 columns of f32: without padding a column lies in one bank.
TEST(ExchangeTest, ColumnsAreSpreadOverBanks) {
  Type tile = Type::tile(DType::kF32, {32, 32});
  Layout from = Layout::dealt({32, 32}, 1024), to = from;
  auto turned = [](int64_t e) { return e % 32 * 32 + e / 32; };
  EXPECT_EQ(exchange_price(tile, from, to, turned, 32), 2 + 1 + 32);
  EXPECT_EQ(exchange_pitch(tile, from, to, turned), 33);
  EXPECT_EQ(exchange_price(tile, from, to, turned, 33), 2 + 1 + 1);
}

TEST(ExchangeTest, OneRowNeedsNoPitch) {
  EXPECT_EQ(exchange_pitch(Type::tile(DType::kF32, {128}), Layout::dealt({128}, 32),
                           Layout::dealt({128}, 32), kSame),
            128);
}

TEST(ExchangeTest, VectorsKeepToTheirAlignment) {
  Layout layout = Layout::dealt({64, 64}, 128);  // runs of 8
  Type tile = Type::tile(DType::kF16, {64, 64});
  EXPECT_EQ(exchange_width(tile, layout, 64, 0), 8);
  EXPECT_EQ(exchange_width(tile, layout, 66, 0), 2);
  EXPECT_EQ(exchange_width(tile, layout, 64, 4), 4);
  EXPECT_EQ(exchange_width(tile, layout, 65, 0), 1);
}

}  // namespace
}  // namespace tenon::codegen
