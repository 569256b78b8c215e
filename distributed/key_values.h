// Where ranks find each other before they have a communicator, as engines see it.
#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace tenon::distributed {

// Values that each rank sets under keys of its own. Called by any thread; what goes wrong is an
// exception.
struct KeyValues {
  std::function<void(const std::string& key, const std::string& value)> set;
  // What `rank` has set; waits for it.
  std::function<std::string(int rank, const std::string& key, std::chrono::milliseconds deadline)>
      get;
};

}  // namespace tenon::distributed
