// Memory of files that ONNX Runtime mapped for their weights.
#pragma once

#include <cstddef>
#include <span>

namespace tenon {

// The bytes were read and are not needed soon. Whole pages that a file stands behind leave this
// process's memory, and come back from the file when somebody reads them again. Pages that exist in
// memory only, or were written to, stay.
void release_file_pages(std::span<const std::byte> bytes);

}  // namespace tenon
