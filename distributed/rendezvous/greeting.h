// How two ends of a connection find out that both know the job's token, which is not sent:
//   server  challenge: magic, version, a nonce
//   client  answer: magic, version, a nonce of its own, HMAC(token, "client", both nonces)
//   server  verdict: whether the answer was right, HMAC(token, "server", both nonces)
// Then frames go both ways, in the clear.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "distributed/rendezvous/job_token.h"

namespace tenon::distributed {

// The longest frame of a peer that has not shown that it knows the token.
inline constexpr size_t kGreetingBytes = 128;

using Nonce = Digest;
Nonce new_nonce();

std::string challenge(const Nonce& server);
// Nothing where the challenge is none of ours, such as another service's first words.
struct Answer {
  std::string frame;
  Nonce server, client;
};
std::optional<Answer> answer(std::string_view challenge, const JobToken& token);

struct Verdict {
  bool accepted = false;
  std::string frame;   // to be sent
  std::string reason;  // why it was refused
};
Verdict judge(std::string_view answer, const Nonce& server, const JobToken& token);

enum class Welcome { kAccepted, kWrongToken, kUnknown };
Welcome read_verdict(std::string_view verdict, const Answer& answer, const JobToken& token);

}  // namespace tenon::distributed
