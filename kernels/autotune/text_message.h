// The text form of Protocol Buffers, as a tree: fields in their order, with the types that the text
// shows. What a field means is its reader's business.
//
// The library is not linked. Its text form needs the full runtime, which would travel beside the
// plugin and meet the copies of ONNX Runtime and Python in one process; a tuning file needs a
// hundred lines of it. tests/python/test_tuning_files.py holds both sides to the library.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tenon::kernels {

struct TextField;

struct TextMessage {
  std::vector<TextField> fields;

  // The first field of this name; null: none.
  const TextField* find(std::string_view name) const;
  // Each throws UserError where the field is there and holds something else; `otherwise` where it
  // is not there.
  std::string text(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise = 0) const;
  double number(std::string_view name) const;
  TextMessage message(std::string_view name) const;

  void add(std::string name, std::string_view text);
  void add(std::string name, int64_t value);
  void add(std::string name, double value);
  void add(std::string name, TextMessage message);

  std::string print(int indent = 0) const;
};

struct TextField {
  enum class Kind : uint8_t { kText, kNumber, kWord, kMessage };

  std::string name;
  Kind kind{};
  std::string scalar;  // of kText without quotes and escapes
  TextMessage message;
  int line = 0;
};

// Reads fields from `text` until it ends. Throws UserError with the line, counted from `line`.
TextMessage parse_text_message(std::string_view text, int line = 1);

}  // namespace tenon::kernels
