// Addresses of this host, as numbers. Gloo takes any name, but does not survive one that it cannot
// resolve and leaks where it cannot be used.
#pragma once

#include <string>

namespace tenon::distributed {

// "127.0.0.1" of "localhost". A UserError where it has none, or those of another host.
std::string own_address(const std::string& name);

// The address of this host from which `host` is reached. A UserError where there is no way.
std::string address_towards(const std::string& host);

}  // namespace tenon::distributed
