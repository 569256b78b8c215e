// How heads lie in an operand of tenon::Attention, of the text in its `*_layout` attributes:
// "bhsd", "bshd", "bhds", "bs(hd)", or "bshd+4" where the tensor holds more heads than are read,
// which begin at the fourth.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace tenon::ir {

struct HeadLayout {
  std::string axes;
  int64_t first_head = 0;
  bool is_packed = false;  // among heads of others

  static HeadLayout parse(std::string_view text) {
    const size_t plus = text.find('+');
    HeadLayout layout;
    layout.axes = text.substr(0, plus);
    layout.is_packed = plus != std::string_view::npos;
    if (layout.is_packed) {
      std::from_chars(text.data() + plus + 1, text.data() + text.size(), layout.first_head);
    }
    return layout;
  }
  std::string text() const { return is_packed ? axes + "+" + std::to_string(first_head) : axes; }
};

}  // namespace tenon::ir
