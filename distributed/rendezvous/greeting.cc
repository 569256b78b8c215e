#include "distributed/rendezvous/greeting.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/byte_form.h"

namespace tenon::distributed {
namespace {

constexpr std::string_view kMagic = "tenon-meets-";
constexpr uint32_t kVersion = 2;
enum class Word : uint8_t { kRefused, kAccepted, kOtherPort };  // of a verdict

Digest read_digest(ByteReader& reader) {
  Digest digest;
  const std::string_view bytes = reader.bytes(digest.size());
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  return digest;
}

// Nonces and port have one length each, so that no role runs into them.
Digest keyed(const Meeting& meeting, std::string_view role) {
  ByteWriter message;
  message.bytes(role);
  message.bytes(bytes_of(meeting.server));
  message.bytes(bytes_of(meeting.client));
  message.number(meeting.port);
  return hmac_sha256(meeting.token, message.take());
}

// The role keeps one side's proof from serving as the other's.
Digest proof_of_client(const Meeting& meeting) { return keyed(meeting, "client"); }
Digest proof_of_server(const Meeting& meeting) { return keyed(meeting, "server"); }

FrameKeys server_keys(const Meeting& meeting) {
  return {.sending = keyed(meeting, "frames of the server"),
          .receiving = keyed(meeting, "frames of the client")};
}

ByteWriter opening() {
  ByteWriter writer;
  writer.bytes(kMagic);
  writer.number(kVersion);
  return writer;
}

// Empty: it begins as ours does.
std::string objection_to(ByteReader& reader) {
  if (reader.bytes(kMagic.size()) != kMagic) return "it is something else";
  const auto version = reader.number<uint32_t>();
  if (version == kVersion) return "";
  return fmt::format(
      "it greets by version {} of the protocol and this rank by version {}: all ranks must run the "
      "same version of Tenon",
      version, kVersion);
}

Verdict refusal(std::string reason, Word word = Word::kRefused) {
  ByteWriter writer;
  writer.number(static_cast<uint8_t>(word));
  return {.accepted = false, .frame = writer.take(), .reason = std::move(reason), .keys = {}};
}

Answer no_answer() { return {.frame = {}, .objection = "it is something else", .meeting = {}}; }

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

Answer answer(std::string_view challenge, const JobToken& token, uint16_t called_port) try {
  ByteReader reader(challenge);
  // Rank 0 hears of another version, too, and tells those who wait.
  if (std::string why = objection_to(reader); !why.empty()) {
    const bool other_version = challenge.starts_with(kMagic);
    return {.frame = other_version ? opening().take() : "",
            .objection = std::move(why),
            .other_version = other_version,
            .meeting = {}};
  }
  const Meeting meeting{
      .token = token, .server = read_digest(reader), .client = new_nonce(), .port = called_port};
  if (reader.left() != 0) return no_answer();
  ByteWriter writer = opening();
  writer.bytes(bytes_of(meeting.client));
  writer.number(meeting.port);
  writer.bytes(bytes_of(proof_of_client(meeting)));
  return {.frame = writer.take(), .objection = {}, .meeting = meeting};
} catch (const UserError&) {
  return no_answer();
}

Verdict judge(std::string_view answer, const Nonce& server, const JobToken& token,
              uint16_t port) try {
  ByteReader reader(answer);
  if (std::string why = objection_to(reader); !why.empty()) return refusal(std::move(why));
  Meeting meeting{.token = token, .server = server, .client = read_digest(reader), .port = 0};
  meeting.port = reader.number<uint16_t>();
  const Digest shown = read_digest(reader);
  if (reader.left() != 0) return refusal("it is something else");
  if (!equal(shown, proof_of_client(meeting))) return refusal("wrong token");
  if (meeting.port != port) {
    return refusal(fmt::format("a rank called port {}, and somebody passed that on to port {}: a "
                               "stranger stands between the ranks",
                               meeting.port, port),
                   Word::kOtherPort);
  }
  ByteWriter writer;
  writer.number(static_cast<uint8_t>(Word::kAccepted));
  writer.bytes(bytes_of(proof_of_server(meeting)));
  return {.accepted = true, .frame = writer.take(), .reason = {}, .keys = server_keys(meeting)};
} catch (const UserError&) {
  return refusal("it is something else");
}

Welcome read_verdict(std::string_view verdict, const Meeting& meeting) try {
  ByteReader reader(verdict);
  const auto word = static_cast<Word>(reader.number<uint8_t>());
  if (word == Word::kRefused) return Welcome::kWrongToken;
  if (word == Word::kOtherPort) return Welcome::kOtherPort;
  const bool proven = equal(read_digest(reader), proof_of_server(meeting));
  return proven && reader.left() == 0 ? Welcome::kAccepted : Welcome::kUnknown;
} catch (const UserError&) {
  return Welcome::kUnknown;
}

FrameKeys client_keys(const Meeting& meeting) {
  const FrameKeys theirs = server_keys(meeting);
  return {.sending = theirs.receiving, .receiving = theirs.sending};
}

}  // namespace tenon::distributed
