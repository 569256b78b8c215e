// How often the plugin asks for host memory. Not the runtime, which does in every Run.
#pragma once

#include <functional>

namespace tenon::testing {

// Calls of malloc from inside of the plugin while `work` runs, on this thread. -1 under a
// sanitizer, which has a malloc of its own.
long count_plugin_allocations(const std::function<void()>& work);

}  // namespace tenon::testing
