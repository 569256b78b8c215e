// How two ends of a connection find out that both know the job's token, which is not sent:
//   server  challenge: magic, version, a nonce
//   client  answer: magic, version, a nonce of its own, the port that it called, HMAC(token,
//           "client", both nonces, port)
//   server  verdict: what it makes of that, HMAC(token, "server", both nonces, port)
// Then frames go both ways, in the clear and signed with keys that follow from token, nonces and
// port. A client that speaks another version answers with magic and version alone.
//
// Who sits between two ranks without the token can pass the greeting on, but not from another port,
// and nothing else of what follows but as it is.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "distributed/rendezvous/frame_channel.h"
#include "distributed/rendezvous/job_token.h"

namespace tenon::distributed {

// The longest frame of a peer that has not shown that it knows the token.
inline constexpr size_t kGreetingBytes = 128;

using Nonce = Digest;
Nonce new_nonce();

// What both sides prove and sign with. `port`: the one that was called.
struct Meeting {
  JobToken token{};
  Nonce server{}, client{};
  uint16_t port = 0;
};

std::string challenge(const Nonce& server);

// What a client has to say to a challenge.
struct Answer {
  std::string frame;           // to be sent; empty: nothing
  std::string objection;       // why this is not a store to greet; empty: it may be one
  bool other_version = false;  // that is why
  Meeting meeting;
};
Answer answer(std::string_view challenge, const JobToken& token, uint16_t called_port);

struct Verdict {
  bool accepted = false;
  std::string frame;   // to be sent
  std::string reason;  // why it was refused
  FrameKeys keys;
};
// `port`: where the server listens.
Verdict judge(std::string_view answer, const Nonce& server, const JobToken& token, uint16_t port);

enum class Welcome { kAccepted, kWrongToken, kOtherPort, kUnknown };
Welcome read_verdict(std::string_view verdict, const Meeting& meeting);
FrameKeys client_keys(const Meeting& meeting);

}  // namespace tenon::distributed
