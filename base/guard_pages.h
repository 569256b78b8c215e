// Memory that ends where a page begins that may be neither read nor written: an access past the end
// is a crash at that instruction. For tests and fuzzing, with TENON_GUARD_PAGES=1; slow, and a page
// or two for every buffer.
#pragma once

#include <cstddef>
#include <memory>

namespace tenon {

// Read from the environment once.
bool guards_pages();

// The begin is a multiple of `alignment`: fewer bytes than that may lie between end and page.
std::shared_ptr<std::byte[]> guarded_bytes(size_t bytes, size_t alignment);

}  // namespace tenon
