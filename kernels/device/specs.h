// The texts of specs/*.txt, compiled in.
#pragma once

#include <span>
#include <string_view>

namespace tenon::device {

struct Spec {
  std::string_view arch, text;
};
std::span<const Spec> specs();

}  // namespace tenon::device
