#include "distributed/shared_memory/call_card.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

namespace tenon::distributed {
namespace {

template <size_t kSize>
void put(char (&to)[kSize], std::string_view text) {
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), to);
}

template <size_t kSize>
std::string taken(const char (&from)[kSize]) {
  return {from, ::strnlen(from, kSize)};
}

}  // namespace

CallCard CallCard::of(const CollectiveCall& call) {
  CallCard card{};
  put(card.op, call.op);
  card.number = call.number;
  card.elements = call.elements;
  card.details = std::hash<std::string_view>()(call.detail);
  card.dtype = static_cast<int32_t>(call.dtype);
  put(card.detail, call.detail);
  return card;
}

CollectiveCall CallCard::call() const {
  return {taken(op), number, elements, static_cast<DType>(dtype), taken(detail)};
}

bool CallCard::is_same_call(const CallCard& other) const {
  return is_same_message(other) && details == other.details &&
         std::memcmp(op, other.op, sizeof op) == 0;
}

bool CallCard::is_same_message(const CallCard& other) const {
  return number == other.number && elements == other.elements && dtype == other.dtype;
}

}  // namespace tenon::distributed
