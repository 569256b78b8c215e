// The secret that the ranks of one job share, and HMAC-SHA-256 (RFC 2104), by which a rank shows
// that it knows it without saying it, and signs what it sends.
#pragma once

#include <string_view>

#include "base/hash.h"

namespace tenon::distributed {

using JobToken = Digest;

// What to do where ranks cannot know each other without one; ends sentences.
inline constexpr const char* kGiveToken =
    "give every rank the same collective_token or TENON_COLLECTIVE_TOKEN (64 hexadecimal digits, "
    "as `openssl rand -hex 32` prints them), or collective_token=none where everybody who can "
    "reach the ranks is trusted";

// 64 hexadecimal digits; `source` is the option or variable that messages name.
JobToken parse_token(std::string_view text, std::string_view source);
// From what the processes of a job know without having been told: it keeps stray connections and
// other jobs out, not somebody who wants in.
JobToken derived_token(std::string_view launcher, std::string_view job, unsigned user_id);

std::string_view bytes_of(const Digest& digest);
Digest hmac_sha256(std::string_view key, std::string_view message);
Digest hmac_sha256(const JobToken& token, std::string_view message);
// Takes the same time wherever they differ.
bool equal(const Digest& left, const Digest& right);
bool equal(std::string_view left, std::string_view right);

}  // namespace tenon::distributed
