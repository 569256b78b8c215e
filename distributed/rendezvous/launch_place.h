// Which rank this process is, of how many, and where they meet: from options, else from the
// variables that torchrun, Open MPI's mpirun and Slurm's srun set. docs/rendezvous.md has the
// table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "distributed/rendezvous/job_token.h"

namespace tenon::distributed {

struct LaunchOptions {
  std::optional<int> rank, size;  // tensor_parallel_rank, tensor_parallel_size
  std::string address;            // collective_address: host:port, [::1]:port; empty: not given
  std::string token;              // collective_token, may be "none"; empty: not given
};

using Variables = std::map<std::string, std::string>;

struct LaunchPlace {
  int rank = 0, size = 1;
  std::optional<int> local_rank;  // among the ranks of this host, where the launcher says
  // Rank 0 listens at the first of the ports that is free, the others try them in turn. Empty
  // where there is nobody to meet.
  std::string host;
  std::vector<uint16_t> ports;
  // What ranks show each other. Nobody gave one: it tells jobs apart, but follows from what others
  // can see, until with_user_secret() has made it this user's.
  JobToken token{};
  bool needs_user_secret = false;
  std::string launcher;  // who said so: "options", "torchrun", "Open MPI", "Slurm"; "" for nobody
};

// An empty variable counts as none. Options beat variables. Contradictions are UserErrors that name
// the option or the variable, and so are ranks that may be on several hosts and have no token.
LaunchPlace launch_place(const LaunchOptions& options, const Variables& variables,
                         unsigned user_id);

// Those variables of this process that launch_place reads.
Variables launch_variables();

}  // namespace tenon::distributed
