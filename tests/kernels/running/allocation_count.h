// Counts what a thread takes from the heap with `new`, in a program that links this.
#pragma once

#include <cstddef>
#include <functional>

namespace tenon::test {

long count_allocations(const std::function<void()>& work);
size_t count_allocated_bytes(const std::function<void()>& work);  // freed ones as well

}  // namespace tenon::test
