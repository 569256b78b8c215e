// Which build of a library or program some code belongs to: another one may compile otherwise.
#pragma once

#include <string>

namespace tenon {

// Of the loaded library or program that `address` lies in: its build id, as the linker wrote it, or
// path, size and time of its file where there is none.
std::string build_id(const void* address);

}  // namespace tenon
