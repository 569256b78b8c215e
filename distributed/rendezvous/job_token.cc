#include "distributed/rendezvous/job_token.h"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "base/error.h"

namespace tenon::distributed {
namespace {

constexpr size_t kBlockBytes = kHashBlockBytes;

std::optional<uint8_t> hex_digit(char digit) {
  if (digit >= '0' && digit <= '9') return static_cast<uint8_t>(digit - '0');
  if (digit >= 'a' && digit <= 'f') return static_cast<uint8_t>(digit - 'a' + 10);
  if (digit >= 'A' && digit <= 'F') return static_cast<uint8_t>(digit - 'A' + 10);
  return std::nullopt;
}

}  // namespace

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

JobToken parse_token(std::string_view text, std::string_view source) {
  JobToken token{};
  bool good = text.size() == 2 * token.size();
  for (size_t i = 0; good && i < token.size(); ++i) {
    const auto high = hex_digit(text[2 * i]), low = hex_digit(text[2 * i + 1]);
    good = high && low;
    if (good) token[i] = static_cast<uint8_t>(*high << 4 | *low);
  }
  // The text is a secret: the message does not repeat it.
  if (!good) {
    throw UserError(
        fmt::format("{} has {} characters; expected 64 hexadecimal digits and nothing else, as "
                    "`openssl rand -hex 32` prints them, or none",
                    source, text.size()));
  }
  return token;
}

JobToken derived_token(std::string_view launcher, std::string_view job, unsigned user_id) {
  return sha256(fmt::format("tenon job\n{}\n{}\n{}", launcher, job, user_id));
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  const Digest short_key = sha256(key);
  if (key.size() > kBlockBytes) key = bytes_of(short_key);
  std::string inner(kBlockBytes, '\x36'), outer(kBlockBytes, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  const Digest inside = sha256(inner.append(message));
  return sha256(outer.append(bytes_of(inside)));
}

Digest hmac_sha256(const JobToken& token, std::string_view message) {
  return hmac_sha256(bytes_of(token), message);
}

bool equal(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

bool equal(const Digest& left, const Digest& right) {
  return equal(bytes_of(left), bytes_of(right));
}

}  // namespace tenon::distributed
