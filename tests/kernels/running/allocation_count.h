// Counts what a thread takes from the heap with `new`, in a program that links this.
#pragma once

#include <functional>

namespace tenon::test {

long count_allocations(const std::function<void()>& work);

}  // namespace tenon::test
