#include "distributed/rendezvous/store_message.h"

#include "base/byte_form.h"

namespace tenon::distributed {

std::string encode(const StoreMessage& message) {
  ByteWriter writer;
  writer.number(static_cast<uint8_t>(message.kind));
  writer.number(message.rank);
  writer.number(message.size);
  writer.text(message.key);
  writer.text(message.value);
  return writer.take();
}

StoreMessage decode(std::string_view bytes) {
  ByteReader reader(bytes);
  StoreMessage message;
  const auto kind = reader.number<uint8_t>();
  if (kind < static_cast<uint8_t>(StoreMessage::Kind::kJoin) ||
      kind > static_cast<uint8_t>(StoreMessage::Kind::kAsk)) {
    throw UserError("an unknown kind of message");
  }
  message.kind = static_cast<StoreMessage::Kind>(kind);
  message.rank = reader.number<int32_t>();
  message.size = reader.number<int32_t>();
  message.key = reader.text();
  message.value = reader.text();
  if (message.key.size() > kLongestKey || message.value.size() > kLongestValue) {
    throw UserError("a key or value is too long");
  }
  if (reader.left() != 0) throw UserError("bytes follow the message");
  return message;
}

}  // namespace tenon::distributed
