// A kernel's PTX as CUDA C++: a function with the same name and parameters whose body is one inline
// assembly, for a compiler that takes nothing else.
#pragma once

#include <string>
#include <string_view>

namespace tenon::device {

// Throws UserError for PTX that is not one kernel of ours: it may have parameters of 64 bits and
// descriptors in `.b8` arrays, dynamic shared memory, and limits on its threads.
std::string cuda_source_of(std::string_view ptx);

}  // namespace tenon::device
