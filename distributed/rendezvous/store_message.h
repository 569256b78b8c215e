// What ranks and the store's server say to each other once the greeting is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tenon::distributed {

struct StoreMessage {
  enum class Kind : uint8_t {
    kJoin = 1,  // to the server: rank, of `size`; value says which process
    kJoined,    // from the server, to all: the same
    kPost,      // of rank, to all others: value under key
    kFailed,    // of rank, to all others: it is gone or cannot go on; value says why, and to the
                // server key says how far it came
    kLeave,     // of rank, to all others: it is done
    kBeat,      // both ways; from the server with a note for those who wait for ranks to join, to
                // it with how far the rank is; key says whether it was asked
    kSame,      // to the server: a fingerprint that must be that of all others under this key
    kAsk,       // from the server: how far are you?
  };
  Kind kind = Kind::kBeat;
  int32_t rank = 0, size = 0;
  std::string key{}, value{};
};

// Of a key, and of a value.
inline constexpr size_t kLongestKey = 1 << 10, kLongestValue = size_t{1} << 20;
inline constexpr size_t kLongestFrame = kLongestKey + kLongestValue + 64;

std::string encode(const StoreMessage& message);
StoreMessage decode(std::string_view bytes);  // UserError where it is none

}  // namespace tenon::distributed
