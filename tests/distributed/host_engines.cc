#include "tests/distributed/host_engines.h"

#include <ostream>
#include <utility>

#include "distributed/gloo/gloo.h"
#include "distributed/shared_memory/shared_memory.h"

namespace tenon::distributed {

const HostEngine kGloo{
    "gloo", gloo_support,
    [](int rank, int size, KeyValues store, std::chrono::milliseconds deadline,
       const std::string& name) {
      return make_gloo(rank, size, std::move(store), {{deadline}, "127.0.0.1"}, name);
    }};

const HostEngine kSharedMemory{"shm", Support::yes,
                               [](int rank, int size, KeyValues store,
                                  std::chrono::milliseconds deadline, const std::string& name) {
                                 auto made = make_shared_memory(rank, size, std::move(store),
                                                                {deadline}, name);
                                 if (made.communicator == nullptr)
                                   throw std::runtime_error(made.why);
                                 return std::move(made.communicator);
                               }};

void PrintTo(const HostEngine& engine, std::ostream* out) { *out << engine.name; }

std::vector<Ended> run_engine(const HostEngine& engine, int size,
                              std::chrono::milliseconds deadline,
                              const std::function<void(Communicator&)>& body,
                              const std::function<void(const std::vector<int>&)>& meanwhile) {
  const TemporaryFolder folder;
  return run_processes(
      size,
      [&](int rank) {
        const auto ranks =
            engine.make(rank, size, file_store(folder.path(), rank), deadline, "ranks");
        body(*ranks);
      },
      meanwhile);
}

}  // namespace tenon::distributed
