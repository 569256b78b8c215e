#include "distributed/host_id.h"

#include <fstream>

namespace tenon::distributed {

std::string host_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace tenon::distributed
