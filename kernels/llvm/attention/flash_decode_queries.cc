#include "kernels/llvm/attention/flash_decode_queries.h"

#include <bit>
#include <utility>
#include <vector>

namespace tenon::kernels {
namespace {

int bits_of(int size) { return std::countr_zero(static_cast<unsigned>(size)); }

}  // namespace

Tile interleaved_queries(codegen::Builder& b, Tile queries, const FlashDecodeConfig& config) {
  const int rows = b.type(queries).shape[0];
  const int column_bits = bits_of(config.columns);
  std::vector<int64_t> order = {0};
  for (int bit = 0; bit < bits_of(rows); ++bit) order.push_back(column_bits + bit);
  for (int bit = 1; bit < column_bits; ++bit) order.push_back(bit);
  return b.permute(queries, std::move(order), {config.columns / 2, 2 * rows});
}

Tile rows_of_queries(codegen::Builder& b, Tile interleaved, const FlashDecodeConfig& config) {
  const int column_bits = bits_of(config.columns),
            bank_bits = bits_of(FlashDecodeConfig::kBankRows);
  std::vector<int64_t> order = {0};
  for (int bit = 1; bit < column_bits; ++bit) order.push_back(bank_bits + bit);
  for (int bit = 0; bit < bank_bits; ++bit) order.push_back(1 + bit);
  const int all_bits = bits_of(config.rows() * config.columns);
  for (int bit = column_bits + bank_bits; bit < all_bits; ++bit) order.push_back(bit);
  return b.permute(interleaved, std::move(order), {config.rows(), config.columns});
}

}  // namespace tenon::kernels
