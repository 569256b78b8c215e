#include "distributed/rendezvous/launch_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/error.h"
#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {
namespace {

// How many ports rank 0 tries where nobody has named one.
constexpr int kPorts = 8;
// MASTER_PORT itself is taken by the store of torch.
constexpr int kFromMasterPort = 1000;
// Below the ports that Linux gives out by itself (32768 and up).
constexpr int kFirstPort = 20'000, kPortRange = 10'000;

// Says that strangers need not be kept out.
constexpr std::string_view kNoToken = "none";

constexpr const char* kRead[] = {"RANK",
                                 "WORLD_SIZE",
                                 "LOCAL_RANK",
                                 "LOCAL_WORLD_SIZE",
                                 "MASTER_ADDR",
                                 "MASTER_PORT",
                                 "TORCHELASTIC_RUN_ID",
                                 "OMPI_COMM_WORLD_RANK",
                                 "OMPI_COMM_WORLD_SIZE",
                                 "OMPI_COMM_WORLD_LOCAL_RANK",
                                 "OMPI_COMM_WORLD_LOCAL_SIZE",
                                 "OMPI_MCA_ess_base_jobid",
                                 "PMIX_NAMESPACE",
                                 "SLURM_PROCID",
                                 "SLURM_NTASKS",
                                 "SLURM_LOCALID",
                                 "SLURM_NNODES",
                                 "SLURM_JOB_ID",
                                 "SLURM_STEP_ID",
                                 "SLURM_STEP_NUM_NODES",
                                 "SLURM_STEP_NUM_TASKS",
                                 "SLURM_STEP_NODELIST",
                                 "TENON_COLLECTIVE_TOKEN"};

struct Launcher {
  std::string name;
  std::string rank_variable, size_variable;
  int rank = 0, size = 1;
  std::optional<int> local_rank{};
  std::string job{};       // tells jobs of one user apart; may be empty
  bool one_host = false;   // all ranks are known to be on this host
  bool innermost = false;  // whatever other launchers say, they started this one
};

std::string value_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  return found == variables.end() ? "" : found->second;
}

std::optional<int> number(const Variables& variables, const std::string& name) {
  const std::string text = value_of(variables, name);
  if (text.empty()) return std::nullopt;
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < 0) {
    throw UserError(fmt::format("{}={}: expected a whole number from 0 on", name, text));
  }
  return value;
}

// Neither: the launcher did not start this process.
bool read_place(Launcher& launcher, const Variables& variables) {
  const auto rank = number(variables, launcher.rank_variable);
  const auto size = number(variables, launcher.size_variable);
  if (!rank && !size) return false;
  if (!rank || !size) {
    const auto& [there, missing] = rank ? std::pair(launcher.rank_variable, launcher.size_variable)
                                        : std::pair(launcher.size_variable, launcher.rank_variable);
    throw UserError(
        fmt::format("{} is set, {} is not; a launcher ({}) sets both. Unset the one, or say it by "
                    "the options tensor_parallel_rank and tensor_parallel_size",
                    there, missing, launcher.name));
  }
  if (*rank >= *size) {
    throw UserError(fmt::format("{}={} with {}={}: ranks are counted from 0 to {}",
                                launcher.rank_variable, *rank, launcher.size_variable, *size,
                                *size - 1));
  }
  launcher.rank = *rank;
  launcher.size = *size;
  return true;
}

std::optional<Launcher> torchrun(const Variables& variables) {
  Launcher launcher{.name = "torchrun", .rank_variable = "RANK", .size_variable = "WORLD_SIZE"};
  if (!read_place(launcher, variables)) return std::nullopt;
  launcher.local_rank = number(variables, "LOCAL_RANK");
  const std::string run = value_of(variables, "TORCHELASTIC_RUN_ID");
  launcher.job = run + " " + value_of(variables, "MASTER_PORT");
  launcher.one_host = number(variables, "LOCAL_WORLD_SIZE") == launcher.size;
  // srun or mpirun start one torchrun per host. By hand, RANK may be a leftover of some shell.
  launcher.innermost = !run.empty();
  return launcher;
}

std::optional<Launcher> open_mpi(const Variables& variables) {
  Launcher launcher{.name = "Open MPI",
                    .rank_variable = "OMPI_COMM_WORLD_RANK",
                    .size_variable = "OMPI_COMM_WORLD_SIZE"};
  if (!read_place(launcher, variables)) return std::nullopt;
  launcher.local_rank = number(variables, "OMPI_COMM_WORLD_LOCAL_RANK");
  launcher.job = value_of(variables, "PMIX_NAMESPACE");
  if (launcher.job.empty()) launcher.job = value_of(variables, "OMPI_MCA_ess_base_jobid");
  launcher.one_host = number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE") == launcher.size;
  launcher.innermost = true;  // in an allocation its daemons are started by srun
  return launcher;
}

bool one_slurm_host(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}) {
    if (const auto hosts = number(variables, name)) return hosts == 1;
  }
  return value_of(variables, "SLURM_STEP_NODELIST").find_first_of(",[") == std::string::npos;
}

// A batch script has SLURM_PROCID=0 and the task count of its job without being one of the tasks:
// only steps, which srun makes, have a list of hosts of their own.
std::optional<Launcher> slurm(const Variables& variables) {
  if (value_of(variables, "SLURM_STEP_NODELIST").empty()) return std::nullopt;
  const bool of_step = !value_of(variables, "SLURM_STEP_NUM_TASKS").empty();
  Launcher launcher{.name = "Slurm",
                    .rank_variable = "SLURM_PROCID",
                    .size_variable = of_step ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS"};
  if (!read_place(launcher, variables)) return std::nullopt;
  launcher.local_rank = number(variables, "SLURM_LOCALID");
  launcher.job = value_of(variables, "SLURM_JOB_ID") + "." + value_of(variables, "SLURM_STEP_ID");
  launcher.one_host = one_slurm_host(variables);
  return launcher;
}

std::optional<Launcher> find_launcher(const Variables& variables) {
  std::vector<Launcher> found;
  for (const auto& read : {torchrun, open_mpi, slurm}) {
    if (auto launcher = read(variables)) found.push_back(*std::move(launcher));
  }
  if (found.empty()) return std::nullopt;
  const Launcher& first = found.front();
  if (found.size() == 1 || first.innermost) return first;
  const Launcher& other = found[1];
  if (other.rank != first.rank || other.size != first.size) {
    throw UserError(fmt::format(
        "{}={} {}={} and {}={} {}={} contradict each other. Unset {} and {}, or say it by the "
        "options tensor_parallel_rank and tensor_parallel_size",
        first.rank_variable, first.rank, first.size_variable, first.size, other.rank_variable,
        other.rank, other.size_variable, other.size, first.rank_variable, first.size_variable));
  }
  return other;  // it knows more: the job, the hosts
}

void check_options(const LaunchOptions& options) {
  if (options.size && *options.size < 1) {
    throw UserError(fmt::format("tensor_parallel_size={}: expected 1 or more", *options.size));
  }
  if (options.rank && *options.rank < 0) {
    throw UserError(fmt::format("tensor_parallel_rank={}: expected 0 or more", *options.rank));
  }
}

void take_rank_and_size(LaunchPlace& place, const LaunchOptions& options,
                        const std::optional<Launcher>& launcher) {
  if (!launcher && options.rank && !options.size) {
    throw UserError("tensor_parallel_rank is given, tensor_parallel_size is not");
  }
  if (!launcher && options.size.value_or(1) > 1 && !options.rank) {
    throw UserError(
        fmt::format("tensor_parallel_size={} and nothing says which of them this process is: give "
                    "tensor_parallel_rank, or start the processes by torchrun, mpirun or srun",
                    *options.size));
  }
  if (launcher && options.size && !options.rank && *options.size != launcher->size) {
    throw UserError(fmt::format(
        "tensor_parallel_size={}, but {} started {} processes ({}): give tensor_parallel_rank, too",
        *options.size, launcher->name, launcher->size, launcher->size_variable));
  }
  if (launcher) {
    place.rank = launcher->rank;
    place.size = launcher->size;
    place.launcher = launcher->name;
  }
  if (options.rank || options.size) place.launcher = "options";
  place.rank = options.rank.value_or(place.rank);
  place.size = options.size.value_or(place.size);
  if (place.rank >= place.size) {
    throw UserError(fmt::format(
        "tensor_parallel_rank={} with {} ranks ({}): they are counted from "
        "0 to {}",
        place.rank, place.size, options.size ? "tensor_parallel_size" : launcher->size_variable,
        place.size - 1));
  }
}

std::vector<uint16_t> ports_from(int first, int step) {
  std::vector<uint16_t> ports(kPorts);
  for (int i = 0; i < kPorts; ++i) {
    ports[static_cast<size_t>(i)] = static_cast<uint16_t>(first + i * step);
  }
  return ports;
}

// Where torch's own store is, at other ports.
bool meet_at_master(LaunchPlace& place, const Variables& variables) {
  const std::string host = value_of(variables, "MASTER_ADDR");
  const auto port = number(variables, "MASTER_PORT");
  if (host.empty() && !port) return false;
  if (host.empty() || !port) {
    throw UserError(fmt::format("{} is set, {} is not; give both, or the option collective_address",
                                port ? "MASTER_PORT" : "MASTER_ADDR",
                                port ? "MASTER_ADDR" : "MASTER_PORT"));
  }
  if (*port < 1 || *port > 65'535) {
    throw UserError(fmt::format("MASTER_PORT={}: expected a port from 1 to 65535", *port));
  }
  place.host = host;
  const bool above = *port + kFromMasterPort + kPorts - 1 <= 65'535;
  place.ports =
      above ? ports_from(*port + kFromMasterPort, 1) : ports_from(*port - kFromMasterPort, -1);
  return true;
}

void meet_on_this_host(LaunchPlace& place, const std::string& job, unsigned user_id) {
  const Digest digest = sha256(fmt::format("tenon port\n{}\n{}", job, user_id));
  const int hash = digest[0] << 16 | digest[1] << 8 | digest[2];
  place.host = "127.0.0.1";
  place.ports = ports_from(kFirstPort + hash % kPortRange, 1);
}

void take_address(LaunchPlace& place, const LaunchOptions& options,
                  const std::optional<Launcher>& launcher, const Variables& variables,
                  unsigned user_id) {
  if (place.size == 1) return;
  if (!options.address.empty()) {
    const HostAndPort address = parse_address(options.address, "collective_address");
    place.host = address.host;
    place.ports = {address.port};
    return;
  }
  const std::string ask =
      "give collective_address=host:port, the same on every rank: an address of rank 0's host and "
      "a "
      "port that is free there";
  // Ranks that are numbered otherwise are another group, and there may be several.
  if (!launcher || launcher->rank != place.rank || launcher->size != place.size) {
    throw UserError(
        fmt::format("rank {} of {} by options, and no address: {}", place.rank, place.size, ask));
  }
  if (meet_at_master(place, variables)) return;
  if (!launcher->one_host) {
    throw UserError(
        fmt::format("{} started {} ranks on several hosts, as far as its variables "
                    "tell, and MASTER_ADDR is not set: {}",
                    launcher->name, place.size, ask));
  }
  meet_on_this_host(place, launcher->name + launcher->job, user_id);
}

JobToken token_of_job(const LaunchPlace& place, const LaunchOptions& options,
                      const std::optional<Launcher>& launcher, unsigned user_id) {
  // Not the host: ranks may spell it differently.
  if (!options.address.empty()) {
    return derived_token("address", std::to_string(place.ports.front()), user_id);
  }
  return derived_token(launcher->name, launcher->job, user_id);
}

void take_token(LaunchPlace& place, const LaunchOptions& options,
                const std::optional<Launcher>& launcher, const Variables& variables,
                unsigned user_id) {
  if (place.size == 1) return;
  const bool by_option = !options.token.empty();
  const std::string given =
      by_option ? options.token : value_of(variables, "TENON_COLLECTIVE_TOKEN");
  if (!given.empty() && given != kNoToken) {
    place.token = parse_token(given, by_option ? "collective_token" : "TENON_COLLECTIVE_TOKEN");
    return;
  }
  place.token = token_of_job(place, options, launcher, user_id);
  if (given == kNoToken) return;
  if (!is_loopback(place.host) && !(launcher && launcher->one_host)) {
    throw UserError(
        fmt::format("{} ranks meet at {} port {}, and as far as options and the launcher's "
                    "variables tell they may be on several hosts; who is one of them is not known "
                    "without a token: {}",
                    place.size, place.host, place.ports.front(), kGiveToken));
  }
  place.needs_user_secret = true;
}

}  // namespace

LaunchPlace launch_place(const LaunchOptions& options, const Variables& variables,
                         unsigned user_id) {
  check_options(options);
  // Options that say all need no launcher, and what variables say is then nobody's business.
  const bool all_said =
      options.size == 1 || (options.rank && options.size && !options.address.empty());
  const std::optional<Launcher> launcher = all_said ? std::nullopt : find_launcher(variables);
  LaunchPlace place;
  take_rank_and_size(place, options, launcher);
  if (launcher) place.local_rank = launcher->local_rank;
  take_address(place, options, launcher, variables, user_id);
  take_token(place, options, launcher, variables, user_id);
  return place;
}

Variables launch_variables() {
  Variables variables;
  for (const char* name : kRead) {
    if (const char* value = std::getenv(name)) variables[name] = value;
  }
  return variables;
}

}  // namespace tenon::distributed
