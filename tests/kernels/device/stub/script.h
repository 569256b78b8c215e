// Faults that a test asked for.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/driver.h"

namespace tenon::stub {

using device::Result;

struct Fault {
  long first = 0;      // number of the call, counted from when the script was given
  bool after = false;  // later calls too
  bool sticky = false;
  Result code = 0;
};

struct Script {
  std::multimap<std::string, Fault> faults;  // by function
  long long free_memory = -1;                // -1: not set
  int devices = 1;
  std::vector<std::pair<int, int>> archs = {{9, 0}};
  int driver_version = 13000;
  std::vector<long> hung_streams;
  std::vector<std::string> dropped;
  bool lazy = false;
  std::optional<unsigned> order;  // seed of the orders in which launches overlap; none: in order

  // Adds commands; throws UserError naming the one that is not understood.
  void add(std::string_view commands);
};

}  // namespace tenon::stub
