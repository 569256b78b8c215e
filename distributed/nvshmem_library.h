// NVSHMEM as a table of functions, loaded by name. Types are our own: no NVSHMEM header is needed
// to build. What is absent or too old is a reason.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "base/support.h"
#include "distributed/loaded_library.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

using NvshmemTeam = int;
inline constexpr NvshmemTeam kNvshmemWorld = 0, kNoNvshmemTeam = -1;

// Structs begin with their version and size, in one number.
constexpr int nvshmem_version_word(int version, size_t bytes) {
  return (version << 16) + static_cast<int>(bytes);
}

// nvshmemx_uniqueid_v1: where the ranks of one job find each other.
struct NvshmemId {
  int version = nvshmem_version_word(1, 128);
  std::array<char, 124> bytes{};
};

// nvshmemx_init_attr_v1. Filled by NVSHMEM's own function, for a job that an id names.
struct NvshmemInit {
  struct IdArguments {  // nvshmemx_uniqueid_args_v1
    int version = nvshmem_version_word(1, sizeof(IdArguments));
    NvshmemId* id = nullptr;
    int rank = -1, size = -1;
  };
  struct Arguments {  // nvshmemx_init_args_v1
    int version = nvshmem_version_word(1, 128);
    IdArguments id;
    std::array<char, 96> reserved{};
  };
  int version = nvshmem_version_word(1, 144);
  void* mpi = nullptr;
  Arguments arguments;
};
inline constexpr unsigned kNvshmemInitWithId = 1 << 3;
static_assert(sizeof(NvshmemId) == 128 && sizeof(NvshmemInit::IdArguments) == 24 &&
              sizeof(NvshmemInit::Arguments) == 128 && sizeof(NvshmemInit) == 144);

// nvshmemx_init_status_t of a library that is in use.
inline constexpr int kNvshmemAlone = 2;          // each rank has a GPU
inline constexpr int kNvshmemSharedLimited = 3;  // ranks share one without MPS: it ends the process
                                                 // that calls a collective
inline constexpr int kNvshmemShared = 4;

// Versions are coded as NCCL's: 30205 is 3.2.5.
inline constexpr int kOldestNvshmem = 30000;
std::string nvshmem_version_text(int version);  // "3.2.5"
bool reduces_bytes(int version);                // 8-bit reductions are right from 3.2.5 on

using NvshmemReduce = int (*)(NvshmemTeam team, void* out, const void* in, size_t count,
                              void* stream);

struct NvshmemFunctions {
#define TENON_NVSHMEM_FUNCTIONS(F)                                                             \
  F(int, get_id, "nvshmemx_get_uniqueid", (NvshmemId * id))                                    \
  F(int, set_id, "nvshmemx_set_attr_uniqueid_args",                                            \
    (int rank, int size, const NvshmemId* id, NvshmemInit* init))                              \
  F(int, init, "nvshmemx_hostlib_init_attr", (unsigned flags, NvshmemInit* init))              \
  F(int, init_status, "nvshmemx_init_status", ())                                              \
  F(void, finalize, "nvshmemx_hostlib_finalize", ())                                           \
  F(void*, allocate, "nvshmem_malloc", (size_t bytes))                                         \
  F(void, free, "nvshmem_free", (void* memory))                                                \
  F(int, split, "nvshmem_team_split_strided",                                                  \
    (NvshmemTeam whole, int first, int stride, int size, const void* config, long config_mask, \
     NvshmemTeam* made))                                                                       \
  F(int, team_rank, "nvshmem_team_my_pe", (NvshmemTeam team))                                  \
  F(int, team_size, "nvshmem_team_n_pes", (NvshmemTeam team))                                  \
  F(void, destroy_team, "nvshmem_team_destroy", (NvshmemTeam team))                            \
  F(int, sync, "nvshmemx_team_sync_on_stream", (NvshmemTeam team, void* stream))               \
  F(int, barrier, "nvshmemx_barrier_on_stream", (NvshmemTeam team, void* stream))              \
  F(int, broadcast, "nvshmemx_broadcastmem_on_stream",                                         \
    (NvshmemTeam team, void* out, const void* in, size_t bytes, int root, void* stream))

#define TENON_DECLARE(result, member, symbol, parameters) result(*member) parameters = nullptr;
  TENON_NVSHMEM_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
  std::map<std::pair<DType, Reduction>, NvshmemReduce> reduce;  // those that the library has

  int version = 0;
  std::string path;

  Support supports(DType dtype, Reduction reduction) const;
};

using NvshmemAnswer = LoadedLibrary<NvshmemFunctions>;

// The first of these that is an NVSHMEM of 3.0 or newer.
NvshmemAnswer load_nvshmem(std::span<const std::string> paths);
// The one of this process: TENON_NVSHMEM_LIBRARY names a file, else libnvshmem_host.so.3 is looked
// for where vendor_library.h says. Loaded once, never closed.
const NvshmemAnswer& nvshmem();

}  // namespace tenon::distributed
