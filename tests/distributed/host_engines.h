// Engines between host processes, each behind the same call: what holds for one holds for all.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/support.h"
#include "tests/distributed/processes.h"

namespace tenon::distributed {

struct HostEngine {
  std::string name;  // "gloo", "shm"
  Support (*support)();
  std::unique_ptr<Communicator> (*make)(int rank, int size, KeyValues store,
                                        std::chrono::milliseconds deadline,
                                        const std::string& name);
};
extern const HostEngine kGloo, kSharedMemory;
// For messages of tests.
void PrintTo(const HostEngine& engine, std::ostream* out);

// Runs `body` in `size` processes, each with a communicator.
std::vector<Ended> run_engine(const HostEngine& engine, int size,
                              std::chrono::milliseconds deadline,
                              const std::function<void(Communicator&)>& body,
                              const std::function<void(const std::vector<int>&)>& meanwhile = {});

}  // namespace tenon::distributed
