#include "distributed/rendezvous/launch_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "distributed/rendezvous/socket.h"

namespace tenon::distributed {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr unsigned kUser = 1000;

LaunchPlace place_of(const Variables& variables, const LaunchOptions& options = {}) {
  return launch_place(options, variables, kUser);
}

std::string error_of(const Variables& variables, const LaunchOptions& options = {}) {
  try {
    const LaunchPlace place = place_of(variables, options);
    return "no error: rank " + std::to_string(place.rank) + " of " + std::to_string(place.size);
  } catch (const UserError& error) {
    return error.what();
  }
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kTorchrun{{"RANK", "3"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "node0"},
                          {"MASTER_PORT", "29500"},
                          {"TORCHELASTIC_RUN_ID", "none"},
                          {"TENON_COLLECTIVE_TOKEN", "none"}};  // of several hosts
const Variables kOpenMpi{{"OMPI_COMM_WORLD_RANK", "2"},
                         {"OMPI_COMM_WORLD_SIZE", "4"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                         {"PMIX_NAMESPACE", "prterun-host-77@1"}};
const Variables kSlurm{{"SLURM_PROCID", "1"},         {"SLURM_NTASKS", "2"},
                       {"SLURM_LOCALID", "1"},        {"SLURM_JOB_ID", "4711"},
                       {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "1"},
                       {"SLURM_STEP_NODELIST", "n1"}, {"SLURM_STEP_NUM_TASKS", "2"}};

TEST(LaunchPlace, OneProcessWhereNobodySaysOtherwise) {
  const LaunchPlace place = place_of({});
  EXPECT_EQ(place.rank, 0);
  EXPECT_EQ(place.size, 1);
  EXPECT_EQ(place.launcher, "");
  EXPECT_TRUE(place.ports.empty());
  EXPECT_EQ(place_of({{"RANK", ""}, {"WORLD_SIZE", ""}}).size, 1) << "empty is unset";
  EXPECT_EQ(place_of({}, {.rank = {}, .size = 1, .address = "", .token = ""}).size, 1);
}

TEST(LaunchPlace, TorchrunBesideItsOwnPort) {
  const LaunchPlace place = place_of(kTorchrun);
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 8);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.host, "node0");
  EXPECT_THAT(place.ports, ElementsAre(30500, 30501, 30502, 30503, 30504, 30505, 30506, 30507));
  const auto high = place_of(with(kTorchrun, {{"MASTER_PORT", "65535"}})).ports;
  EXPECT_THAT(high, ElementsAre(64535, 64534, 64533, 64532, 64531, 64530, 64529, 64528));
  EXPECT_EQ(place_of(with(kTorchrun, {{"MASTER_PORT", "64528"}})).ports.back(), 65535);
  EXPECT_EQ(place_of(with(kTorchrun, {{"MASTER_PORT", "64529"}})).ports.front(), 63529);
}

TEST(LaunchPlace, RanksOfAJobAgreeAndJobsDiffer) {
  const LaunchPlace one = place_of(kTorchrun);
  const LaunchPlace peer =
      place_of(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "10.0.0.1"}}));
  EXPECT_EQ(one.token, peer.token);
  EXPECT_EQ(one.ports, peer.ports);
  EXPECT_NE(one.token, place_of(with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "b"}})).token);
  EXPECT_NE(one.token, place_of(with(kTorchrun, {{"MASTER_PORT", "29501"}})).token);
  EXPECT_NE(one.token, launch_place({}, kTorchrun, kUser + 1).token);
  EXPECT_FALSE(one.needs_user_secret);

  const LaunchPlace step = place_of(kSlurm),
                    other = place_of(with(kSlurm, {{"SLURM_STEP_ID", "1"}}));
  EXPECT_EQ(step.token, place_of(with(kSlurm, {{"SLURM_PROCID", "0"}})).token);
  EXPECT_EQ(step.ports, place_of(with(kSlurm, {{"SLURM_PROCID", "0"}})).ports);
  EXPECT_NE(step.token, other.token);
  EXPECT_NE(step.ports, other.ports);
}

TEST(LaunchPlace, MpirunAndSrunOnOneHostNeedNoAddress) {
  const LaunchPlace mpi = place_of(kOpenMpi), slurm = place_of(kSlurm);
  EXPECT_EQ(mpi.rank, 2);
  EXPECT_EQ(mpi.size, 4);
  EXPECT_EQ(mpi.local_rank, 2);
  EXPECT_EQ(mpi.launcher, "Open MPI");
  EXPECT_EQ(slurm.rank, 1);
  EXPECT_EQ(slurm.size, 2);
  EXPECT_EQ(slurm.local_rank, 1);
  EXPECT_EQ(slurm.launcher, "Slurm");
  for (const LaunchPlace& place : {mpi, slurm}) {
    EXPECT_EQ(place.host, "127.0.0.1");
    EXPECT_EQ(place.ports.size(), 8);
    EXPECT_GE(place.ports.front(), 20'000);
    EXPECT_LT(place.ports.back(), 32'768) << "from there on the kernel gives ports away";
  }
  EXPECT_EQ(
      place_of(with(without(kOpenMpi, "PMIX_NAMESPACE"), {{"OMPI_MCA_ess_base_jobid", "9"}})).host,
      "127.0.0.1");
}

TEST(LaunchPlace, SeveralHostsAskForAnAddress) {
  EXPECT_THAT(error_of(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}})),
              AllOf(HasSubstr("collective_address"), HasSubstr("Open MPI")));
  EXPECT_THAT(error_of(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}})),
              AllOf(HasSubstr("collective_address"), HasSubstr("Slurm")));
  const Variables uncounted = without(kSlurm, "SLURM_STEP_NUM_NODES");
  EXPECT_EQ(place_of(uncounted).host, "127.0.0.1");
  for (const char* list : {"n[1-2]", "n1,n2"}) {
    EXPECT_THAT(error_of(with(uncounted, {{"SLURM_STEP_NODELIST", list}})),
                HasSubstr("collective_address"));
  }
  EXPECT_THAT(error_of({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("collective_address"));
  // What scripts for torch export serves as well.
  const LaunchPlace place = place_of(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"},
                                                   {"MASTER_ADDR", "n1"},
                                                   {"MASTER_PORT", "12345"},
                                                   {"TENON_COLLECTIVE_TOKEN", "none"}}));
  EXPECT_EQ(place.host, "n1");
  EXPECT_EQ(place.ports.front(), 13345);
  const LaunchPlace given =
      place_of(with(kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}}),
               {.rank = {}, .size = {}, .address = "[fd00::1]:29600", .token = "none"});
  EXPECT_EQ(given.host, "fd00::1");
  EXPECT_THAT(given.ports, ElementsAre(29600));
  EXPECT_EQ(given.rank, 1);
}

TEST(LaunchPlace, ABatchScriptIsNoTask) {
  const LaunchPlace place = place_of(without(kSlurm, "SLURM_STEP_NODELIST"));
  EXPECT_EQ(place.size, 1);
  EXPECT_EQ(place_of(with(without(kSlurm, "SLURM_STEP_NUM_TASKS"), {{"SLURM_NTASKS", "4"}})).size,
            4);
}

TEST(LaunchPlace, LaunchersInLaunchers) {
  // One torchrun per host, started by srun: the usual way on clusters.
  EXPECT_EQ(place_of(with(kSlurm, kTorchrun)).launcher, "torchrun");
  EXPECT_EQ(place_of(with(kOpenMpi, kTorchrun)).rank, 3);
  // mpirun in an allocation has srun start its daemons.
  EXPECT_EQ(place_of(with(kSlurm, kOpenMpi)).launcher, "Open MPI");
  // By hand: the script passes on what Slurm said, or forgot what it once exported.
  const Variables by_hand = with(kSlurm, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(place_of(by_hand).rank, 1);
  EXPECT_THAT(error_of(with(by_hand, {{"RANK", "0"}})),
              AllOf(HasSubstr("RANK=0"), HasSubstr("SLURM_PROCID=1"), HasSubstr("contradict")));
  EXPECT_THAT(error_of(with(by_hand, {{"WORLD_SIZE", "3"}})),
              AllOf(HasSubstr("WORLD_SIZE=3"), HasSubstr("SLURM_STEP_NUM_TASKS=2")));
  EXPECT_THAT(error_of(with(kOpenMpi, {{"RANK", "1"}, {"WORLD_SIZE", "4"}})),
              AllOf(HasSubstr("RANK=1"), HasSubstr("OMPI_COMM_WORLD_RANK=2")));
}

TEST(LaunchPlace, BadVariablesAreNamed) {
  EXPECT_THAT(error_of(without(kTorchrun, "RANK")),
              AllOf(HasSubstr("RANK is not"), HasSubstr("WORLD_SIZE is set")));
  EXPECT_THAT(error_of(without(kTorchrun, "WORLD_SIZE")), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(error_of(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
              HasSubstr("OMPI_COMM_WORLD_SIZE is not"));
  EXPECT_THAT(error_of(without(kSlurm, "SLURM_PROCID")), HasSubstr("SLURM_PROCID is not"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", "8"}})),
              AllOf(HasSubstr("RANK=8"), HasSubstr("WORLD_SIZE=8")));
  for (const char* bad : {"-1", "x", "1x", " 1", "99999999999", "1.5"}) {
    EXPECT_THAT(error_of(with(kTorchrun, {{"RANK", bad}})), HasSubstr(std::string("RANK=") + bad));
  }
  EXPECT_THAT(error_of(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not"));
  EXPECT_THAT(error_of(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not"));
  for (const char* bad : {"0", "65536"}) {
    EXPECT_THAT(error_of(with(kTorchrun, {{"MASTER_PORT", bad}})), HasSubstr("MASTER_PORT="));
  }
}

LaunchOptions options(std::optional<int> rank, std::optional<int> size, std::string address = "") {
  return {.rank = rank, .size = size, .address = std::move(address), .token = "none"};
}

TEST(LaunchPlace, OptionsBeatVariables) {
  const LaunchPlace place = place_of(kTorchrun, options(1, 2, "127.0.0.1:4000"));
  EXPECT_EQ(place.rank, 1);
  EXPECT_EQ(place.size, 2);
  EXPECT_EQ(place.host, "127.0.0.1");
  EXPECT_THAT(place.ports, ElementsAre(4000));
  EXPECT_EQ(place.launcher, "options");
  // Said twice, the same: the launcher's address serves.
  EXPECT_EQ(place_of(kTorchrun, options(3, 8)).host, "node0");
  EXPECT_EQ(place_of(kTorchrun, options({}, 8)).rank, 3);
  EXPECT_EQ(place_of(kTorchrun, options(3, {})).size, 8);
  // Options that say all: variables may be as wrong as they like.
  EXPECT_EQ(place_of({{"RANK", "x"}}, options(1, 2, "h:1")).rank, 1);
  // Replicas under a launcher: each process by itself.
  EXPECT_EQ(place_of(kTorchrun, options(0, 1)).size, 1);
  EXPECT_EQ(place_of(kTorchrun, options({}, 1)).rank, 0);
  EXPECT_EQ(place_of(kTorchrun, options(0, 2, "h:1")).local_rank, std::nullopt);
  EXPECT_EQ(place_of(kTorchrun, options(5, {}, "h:1")).local_rank, 1);
}

TEST(LaunchPlace, BadOptionsAreNamed) {
  EXPECT_THAT(error_of({}, options(0, {})), HasSubstr("tensor_parallel_size"));
  EXPECT_THAT(error_of({}, options({}, 2)), HasSubstr("tensor_parallel_rank"));
  EXPECT_THAT(error_of({}, options(2, 2, "h:1")), HasSubstr("tensor_parallel_rank=2"));
  EXPECT_THAT(error_of({}, options(-1, 2, "h:1")), HasSubstr("tensor_parallel_rank=-1"));
  EXPECT_THAT(error_of({}, options(0, 0, "h:1")), HasSubstr("tensor_parallel_size=0"));
  EXPECT_THAT(error_of({}, options(0, 2)), HasSubstr("collective_address"));
  EXPECT_THAT(error_of(kTorchrun, options(9, {}, "h:1")),
              AllOf(HasSubstr("tensor_parallel_rank=9"), HasSubstr("WORLD_SIZE")));
  EXPECT_THAT(error_of(kTorchrun, options({}, 4)),
              AllOf(HasSubstr("tensor_parallel_size=4"), HasSubstr("WORLD_SIZE"),
                    HasSubstr("tensor_parallel_rank")));
  // Another numbering is another group: the launcher's address may belong to several.
  EXPECT_THAT(error_of(kTorchrun, options(0, 4)), HasSubstr("collective_address"));
  for (const char* bad : {"host", "host:", ":1", "host:0", "host:65536", "host:1x", "fd00::1:5",
                          "[]:5", "0.0.0.0:5", "[::]:5", "host:-1"}) {
    EXPECT_THAT(error_of({}, options(0, 2, bad)),
                HasSubstr(std::string("collective_address=") + bad));
  }
}

TEST(LaunchPlace, TokensByOptionThenByVariable) {
  const std::string a(64, 'a'), b(64, 'b');
  const Variables variables = with(kTorchrun, {{"TENON_COLLECTIVE_TOKEN", b}});
  EXPECT_EQ(hex(place_of(variables).token), b);
  LaunchOptions given = options({}, {});
  given.token = a;
  EXPECT_EQ(hex(place_of(variables, given).token), a);
  given.token = "short";
  EXPECT_THAT(error_of(variables, given), HasSubstr("collective_token"));
  EXPECT_THAT(error_of(with(kTorchrun, {{"TENON_COLLECTIVE_TOKEN", "z"}})),
              HasSubstr("TENON_COLLECTIVE_TOKEN"));
  // It says that strangers need not be kept out, and by address alone ranks may spell the host as
  // they like.
  EXPECT_FALSE(place_of({}, options(0, 2, "h:5")).needs_user_secret);
  EXPECT_EQ(place_of({}, options(0, 2, "127.0.0.1:5")).token,
            place_of({}, options(1, 2, "localhost:5")).token);
  EXPECT_NE(place_of({}, options(0, 2, "127.0.0.1:5")).token,
            place_of({}, options(0, 2, "127.0.0.1:6")).token);
}

LaunchOptions without_token(LaunchOptions options) {
  options.token = "";
  return options;
}

TEST(LaunchPlace, RanksOfOneHostTakeTheirUsersSecret) {
  for (const Variables& variables :
       {kOpenMpi,
        kSlurm,
        with(without(kTorchrun, "TENON_COLLECTIVE_TOKEN"), {{"LOCAL_WORLD_SIZE", "8"}}),
        {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "9"}}}) {
    EXPECT_TRUE(place_of(variables).needs_user_secret);
    EXPECT_FALSE(place_of(with(variables, {{"TENON_COLLECTIVE_TOKEN", "none"}})).needs_user_secret);
    EXPECT_FALSE(place_of(with(variables, {{"TENON_COLLECTIVE_TOKEN", std::string(64, 'a')}}))
                     .needs_user_secret);
  }
  for (const char* host : {"127.0.0.1", "127.9.9.9", "localhost", "[::1]"}) {
    const auto place = place_of({}, without_token(options(0, 2, std::string(host) + ":5")));
    EXPECT_TRUE(place.needs_user_secret) << host;
  }
  // The launcher knows that all are here, whatever the address.
  EXPECT_TRUE(place_of(kOpenMpi, without_token(options({}, {}, "node0:5"))).needs_user_secret);
  EXPECT_FALSE(place_of({}).needs_user_secret) << "one rank has nobody to meet";
}

TEST(LaunchPlace, RanksThatMayBeOnSeveralHostsNeedAToken) {
  const Variables torchrun = without(kTorchrun, "TENON_COLLECTIVE_TOKEN");
  const Variables two_nodes = with(
      kSlurm, {{"SLURM_STEP_NUM_NODES", "2"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "12345"}});
  for (const Variables& variables : {torchrun, without(torchrun, "LOCAL_WORLD_SIZE"), two_nodes,
                                     with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                                     {"MASTER_ADDR", "n1"},
                                                     {"MASTER_PORT", "12345"}})}) {
    EXPECT_THAT(error_of(variables),
                AllOf(HasSubstr("several hosts"), HasSubstr("collective_token"),
                      HasSubstr("TENON_COLLECTIVE_TOKEN"), HasSubstr("openssl rand -hex 32"),
                      HasSubstr("collective_token=none")));
    EXPECT_EQ(place_of(with(variables, {{"TENON_COLLECTIVE_TOKEN", "none"}})).token,
              place_of(with(variables, {{"TENON_COLLECTIVE_TOKEN", "none"}})).token);
  }
  for (const char* host : {"10.0.0.1", "node0", "[fd00::1]", "128.0.0.1"}) {
    const auto given = without_token(options(0, 2, std::string(host) + ":5"));
    EXPECT_THAT(error_of({}, given), HasSubstr("several hosts")) << host;
  }
}

TEST(LaunchPlace, ReadsTheProcessesVariables) {
  ASSERT_EQ(::setenv("OMPI_COMM_WORLD_RANK", "5", 1), 0);
  EXPECT_EQ(launch_variables().at("OMPI_COMM_WORLD_RANK"), "5");
  ASSERT_EQ(::unsetenv("OMPI_COMM_WORLD_RANK"), 0);
  EXPECT_FALSE(launch_variables().contains("OMPI_COMM_WORLD_RANK"));
}

}  // namespace
}  // namespace tenon::distributed
