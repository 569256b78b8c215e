// Sizes as people read them: "512 B", "1.5 MiB".
#pragma once

#include <cstddef>
#include <string>

namespace tenon::device {

std::string bytes_text(size_t bytes);

}  // namespace tenon::device
