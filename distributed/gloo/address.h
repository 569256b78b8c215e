// Addresses of this host, as numbers: Gloo takes names, but does not survive one it cannot resolve.
#pragma once

#include <string>

namespace tenon::distributed {

// "127.0.0.1" of "localhost". A UserError where there is none.
std::string numeric_address(const std::string& name);

// The address of this host from which `host` is reached. A UserError where there is no way.
std::string address_towards(const std::string& host);

}  // namespace tenon::distributed
