// Ranks for tests: threads of this process, each with a store of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "distributed/rendezvous/socket.h"
#include "distributed/rendezvous/store.h"

namespace tenon::distributed {

// Ports of 127.0.0.1 that nobody has at the moment.
std::vector<uint16_t> free_ports(int count = 8);

Endpoint endpoint(const std::string& host, uint16_t port);

// Where a group of `size` is to meet; the rank is to be set.
LaunchPlace meeting(int size, std::vector<uint16_t> ports = free_ports());

Store::Settings seconds(int deadline, int silence = 30);

// What the work of each rank returned, or the text of what it threw, joining included.
using Work = std::function<std::string(Store&)>;
std::vector<std::string> run_ranks(int size, const Work& work,
                                   const Store::Settings& settings = seconds(20));
std::vector<std::string> run_ranks(const std::vector<LaunchPlace>& places, const Work& work,
                                   const Store::Settings& settings = seconds(20));
std::vector<LaunchPlace> places_of(const LaunchPlace& meeting);
// One of them, in the caller's thread.
std::string run_rank(const LaunchPlace& place, const Work& work,
                     const Store::Settings& settings = seconds(20));

}  // namespace tenon::distributed
