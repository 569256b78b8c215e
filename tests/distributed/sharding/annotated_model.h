// Bytes of an ONNX file that has nodes with sharding specs, and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::testing {

// A message of Protocol Buffers.
class Message {
 public:
  Message& number(int field, int64_t value) {
    put(static_cast<uint64_t>(field) << 3);
    put(static_cast<uint64_t>(value));
    return *this;
  }
  Message& text(int field, std::string_view value) {
    put(static_cast<uint64_t>(field) << 3 | 2);
    put(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& inside) { return text(field, inside.bytes_); }
  const std::string& bytes() const { return bytes_; }

 private:
  void put(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

// Shards of a dim; none: the tensor is whole.
inline Message spec(std::string_view tensor, int64_t axis, int64_t shards,
                    const std::vector<int64_t>& devices = {}) {
  Message made;
  made.text(1, tensor);
  for (const int64_t device : devices) made.number(2, device);
  if (shards == 0) return made;
  return made.message(4, Message().number(1, axis).message(2, Message().number(3, shards)));
}

inline Message group(int64_t key, const std::vector<int64_t>& members) {
  Message made;
  made.number(1, key);
  for (const int64_t member : members) made.number(2, member);
  return made;
}

inline Message node(std::string_view name, std::string_view op,
                    const std::vector<std::string>& inputs, std::string_view output) {
  Message made;
  for (const std::string& input : inputs) made.text(1, input);
  return made.text(2, output).text(3, name).text(4, op);
}

inline Message with(Message node, const std::vector<Message>& specs, std::string_view id = "all") {
  Message configuration;
  configuration.text(1, id);
  for (const Message& one : specs) configuration.message(2, one);
  return node.message(10, configuration);
}

inline std::string model(const std::vector<Message>& nodes,
                         const std::vector<std::pair<std::string, int64_t>>& configurations) {
  Message graph;
  for (const Message& one : nodes) graph.message(1, one);
  Message made;
  made.number(1, 11).message(7, graph);
  for (const auto& [name, devices] : configurations) {
    made.message(26, Message().text(1, name).number(2, devices));
  }
  return made.bytes();
}

}  // namespace tenon::testing
