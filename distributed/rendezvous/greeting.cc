#include "distributed/rendezvous/greeting.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/byte_form.h"

namespace tenon::distributed {
namespace {

constexpr std::string_view kMagic = "tenon-meets-";
constexpr uint32_t kVersion = 1;

std::string_view bytes_of(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

Digest read_digest(ByteReader& reader) {
  Digest digest;
  const std::string_view bytes = reader.bytes(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// The role keeps one side's proof from serving as the other's.
Digest proof(const JobToken& token, std::string_view role, const Nonce& server,
             const Nonce& client) {
  std::string message(role);
  message += bytes_of(server);
  message += bytes_of(client);
  return hmac_sha256(token, message);
}

ByteWriter opening() {
  ByteWriter writer;
  writer.bytes(kMagic);
  writer.number(kVersion);
  return writer;
}

bool read_opening(ByteReader& reader) {
  return reader.bytes(kMagic.size()) == kMagic && reader.number<uint32_t>() == kVersion;
}

Verdict refusal(std::string reason) {
  ByteWriter writer;
  writer.number(uint8_t{0});
  return {.accepted = false, .frame = writer.take(), .reason = std::move(reason)};
}

}  // namespace

Nonce new_nonce() {
  Nonce nonce;
  if (::getentropy(nonce.data(), nonce.size()) != 0) {
    throw std::system_error(errno, std::system_category(), "getentropy");
  }
  return nonce;
}

std::string challenge(const Nonce& server) {
  ByteWriter writer = opening();
  writer.bytes(bytes_of(server));
  return writer.take();
}

std::optional<Answer> answer(std::string_view challenge, const JobToken& token) try {
  ByteReader reader(challenge);
  if (!read_opening(reader)) return std::nullopt;
  Answer answer{.frame = {}, .server = read_digest(reader), .client = new_nonce()};
  if (reader.left() != 0) return std::nullopt;
  ByteWriter writer = opening();
  writer.bytes(bytes_of(answer.client));
  writer.bytes(bytes_of(proof(token, "client", answer.server, answer.client)));
  answer.frame = writer.take();
  return answer;
} catch (const UserError&) {
  return std::nullopt;
}

Verdict judge(std::string_view answer, const Nonce& server, const JobToken& token) try {
  ByteReader reader(answer);
  if (!read_opening(reader)) return refusal("not a rank of this version");
  const Nonce client = read_digest(reader);
  const Digest shown = read_digest(reader);
  if (reader.left() != 0) return refusal("not a rank of this version");
  if (!equal(shown, proof(token, "client", server, client))) return refusal("wrong token");
  ByteWriter writer;
  writer.number(uint8_t{1});
  writer.bytes(bytes_of(proof(token, "server", server, client)));
  return {.accepted = true, .frame = writer.take(), .reason = {}};
} catch (const UserError&) {
  return refusal("not a rank of this version");
}

Welcome read_verdict(std::string_view verdict, const Answer& answer, const JobToken& token) try {
  ByteReader reader(verdict);
  if (reader.number<uint8_t>() == 0) return Welcome::kWrongToken;
  const bool proven =
      equal(read_digest(reader), proof(token, "server", answer.server, answer.client));
  return proven && reader.left() == 0 ? Welcome::kAccepted : Welcome::kUnknown;
} catch (const UserError&) {
  return Welcome::kUnknown;
}

}  // namespace tenon::distributed
