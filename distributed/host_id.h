// Which host this is.
#pragma once

#include <string>

namespace tenon::distributed {

// The same in all containers of a host, and in no other host; empty where it is not known.
std::string host_id();

}  // namespace tenon::distributed
