// NVSHMEM's functions on host memory, with faults on demand. What is put on a stream is done when
// the call returns.
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "distributed/element_ops.h"
#include "tests/distributed/stub_nvshmem/control.h"
#include "tests/distributed/stub_nvshmem/world.h"

#define TENON_VISIBLE extern "C" __attribute__((visibility("default")))

using namespace stub_nvshmem;
using tenon::DType;
using tenon::distributed::Reduction;

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kInternal = 7;
constexpr int kNotInitialized = 0, kInitialized = 2, kLimitedMpg = 3, kFullMpg = 4;

struct Team {
  std::vector<int> ranks;  // of the job
  int rank = -1;           // -1: not one of them
  bool is_live = false;
  int said_size() const { return says_one ? 1 : static_cast<int>(ranks.size()); }
  bool says_one = false;
};

struct State {
  std::mutex mutex;
  int version = 30800;
  std::map<std::string, int> faults;
  int status_when_started = kInitialized;
  std::unique_ptr<World> world;
  std::vector<Team> teams;
  int allocations = 0;
};

State& state() {
  static State& state = *new State;
  return state;
}

// 0, or the fault that this call of `function` has.
int take_fault(const char* function) {
  std::unique_lock lock(state().mutex);
  const auto found = state().faults.find(function);
  if (found == state().faults.end()) return 0;
  const int fault = found->second;
  state().faults.erase(found);
  lock.unlock();
  while (fault == kStubNvshmemBlocks) ::pause();
  return fault;
}

struct Id {
  int version;
  std::array<char, 124> bytes;
};

// By the published layout, not by ours.
template <typename Value>
Value member(const void* of, size_t offset) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(of) + offset, sizeof(Value));
  return value;
}
template <typename Value>
void set_member(void* of, size_t offset, Value value) {
  std::memcpy(static_cast<char*>(of) + offset, &value, sizeof(Value));
}
bool is_init(const void* init) {
  return member<int>(init, 0) == (1 << 16) + 144 && member<int>(init, 16) == (1 << 16) + 128 &&
         member<int>(init, 24) == (1 << 16) + 24;
}

bool meet(int team) { return state().world->meet(team, state().teams[team].ranks); }

// Real collectives end a process that shares its GPU without MPS.
void end_where_limited() {
  if (state().status_when_started == kLimitedMpg) ::_exit(255);
}

int reduce(const char* function, int team, DType dtype, Reduction reduction, void* out,
           const void* in, size_t count) {
  end_where_limited();
  if (take_fault(function) != 0) return kInternal;
  World& world = *state().world;
  const size_t bytes = tenon::storage_bytes(dtype, static_cast<int64_t>(count));
  if (out == in || !world.holds(out, bytes) || !world.holds(in, bytes)) return kInvalidValue;
  if (!meet(team)) return kInternal;
  std::vector<const void*> inputs;
  for (const int rank : state().teams[team].ranks) inputs.push_back(world.of(rank, in));
  tenon::distributed::reduce_elements(dtype, reduction, inputs, out, static_cast<int64_t>(count));
  return meet(team) ? kSuccess : kInternal;
}

}  // namespace

TENON_VISIBLE void stubNvshmemSetVersion(int version) { state().version = version; }
TENON_VISIBLE void stubNvshmemFail(const char* function, int fault) {
  const std::lock_guard lock(state().mutex);
  state().faults[function] = fault;
}
TENON_VISIBLE void stubNvshmemShareGpu(bool has_mps) {
  state().status_when_started = has_mps ? kFullMpg : kLimitedMpg;
}
TENON_VISIBLE int stubNvshmemPending() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().faults.size());
}
TENON_VISIBLE int stubNvshmemLive() {
  int live = state().allocations + (state().world ? 1 : 0);
  for (size_t team = 1; team < state().teams.size(); ++team) live += state().teams[team].is_live;
  return live;
}

TENON_VISIBLE void nvshmemx_vendor_get_version_info(int* major, int* minor, int* patch) {
  *major = state().version / 10000;
  *minor = state().version / 100 % 100;
  *patch = state().version % 100;
}

TENON_VISIBLE int nvshmemx_get_uniqueid(Id* id) {
  if (take_fault("nvshmemx_get_uniqueid") != 0) return kInternal;
  const std::string file = make_world_file();
  if (file.empty()) return kInternal;
  id->version = (1 << 16) + 128;
  file.copy(id->bytes.data(), id->bytes.size() - 1);
  return kSuccess;
}

TENON_VISIBLE int nvshmemx_set_attr_uniqueid_args(int rank, int size, const Id* id, void* init) {
  if (take_fault("nvshmemx_set_attr_uniqueid_args") != 0 || !is_init(init)) return kInvalidValue;
  set_member(init, 32, id);
  set_member(init, 40, rank);
  set_member(init, 44, size);
  return kSuccess;
}

TENON_VISIBLE int nvshmemx_hostlib_init_attr(unsigned flags, void* init) {
  if (take_fault("nvshmemx_hostlib_init_attr") != 0) return kInternal;
  if (flags != 8 || !is_init(init) || state().world) return kInvalidValue;
  const Id& id = *member<const Id*>(init, 32);
  const int rank = member<int>(init, 40), size = member<int>(init, 44);
  if (id.version != (1 << 16) + 128 || size > kMaxRanks) return kInvalidValue;
  state().world = std::make_unique<World>(id.bytes.data(), rank, size);
  Team all{.ranks = {}, .rank = rank, .is_live = true};
  for (int i = 0; i < size; ++i) all.ranks.push_back(i);
  state().teams = {all};
  if (take_fault("TEAM_WORLD") == kStubNvshmemTeamOfOne) state().teams[0].says_one = true;
  if (!meet(0)) return kInternal;
  if (rank == 0) ::unlink(id.bytes.data());
  return kSuccess;
}

TENON_VISIBLE int nvshmemx_init_status() {
  if (take_fault("nvshmemx_init_status") != 0) return kNotInitialized;
  return state().world ? state().status_when_started : kNotInitialized;
}

TENON_VISIBLE void nvshmemx_hostlib_finalize() {
  take_fault("nvshmemx_hostlib_finalize");
  meet(0);
  state().world.reset();
  state().teams.clear();
}

TENON_VISIBLE void* nvshmem_malloc(size_t bytes) {
  if (take_fault("nvshmem_malloc") != 0 || !meet(0)) return nullptr;
  void* memory = state().world->allocate(bytes);
  if (memory != nullptr) ++state().allocations;
  return memory;
}
TENON_VISIBLE void nvshmem_free(void*) {
  take_fault("nvshmem_free");
  meet(0);
  --state().allocations;
}

TENON_VISIBLE int nvshmem_team_split_strided(int whole, int first, int stride, int size,
                                             const void* config, long mask, int* made) {
  end_where_limited();
  *made = -1;
  const int fault = take_fault("nvshmem_team_split_strided");
  if (fault == kStubNvshmemRefuses) return kInternal;
  if (first < 0 || stride < 1 || size < 1 || config != nullptr || mask != 0) return kInvalidValue;
  if (!meet(whole)) return kInternal;
  Team team{.ranks = {}, .rank = -1, .is_live = true, .says_one = fault == kStubNvshmemTeamOfOne};
  for (int i = 0; i < size; ++i) {
    team.ranks.push_back(state().teams[whole].ranks.at(first + i * stride));
    if (team.ranks.back() == state().world->rank()) team.rank = i;
  }
  team.is_live = team.rank >= 0;
  state().teams.push_back(team);
  if (team.is_live) *made = static_cast<int>(state().teams.size()) - 1;
  return kSuccess;
}
TENON_VISIBLE int nvshmem_team_my_pe(int team) {
  return state().teams[team].says_one ? 0 : state().teams[team].rank;
}
TENON_VISIBLE int nvshmem_team_n_pes(int team) { return state().teams[team].said_size(); }
TENON_VISIBLE void nvshmem_team_destroy(int team) {
  take_fault("nvshmem_team_destroy");
  state().teams[team].is_live = false;
}

TENON_VISIBLE int nvshmemx_team_sync_on_stream(int team, void*) {
  end_where_limited();
  return take_fault("nvshmemx_team_sync_on_stream") == 0 && meet(team) ? kSuccess : kInternal;
}
TENON_VISIBLE int nvshmemx_barrier_on_stream(int team, void*) {
  end_where_limited();
  return take_fault("nvshmemx_barrier_on_stream") == 0 && meet(team) ? kSuccess : kInternal;
}

TENON_VISIBLE int nvshmemx_broadcastmem_on_stream(int team, void* out, const void* in, size_t bytes,
                                                  int root, void*) {
  end_where_limited();
  if (take_fault("nvshmemx_broadcastmem_on_stream") != 0) return kInternal;
  World& world = *state().world;
  if (!world.holds(out, bytes) || !world.holds(in, bytes)) return kInvalidValue;
  if (!meet(team)) return kInternal;
  std::memcpy(out, world.of(state().teams[team].ranks.at(root), in), bytes);
  return meet(team) ? kSuccess : kInternal;
}

#define TENON_REDUCE(type, dtype, operation, reduction)                                     \
  TENON_VISIBLE int nvshmemx_##type##_##operation##_reduce_on_stream(                       \
      int team, void* out, const void* in, size_t count, void*) {                           \
    return reduce("nvshmemx_" #type "_" #operation "_reduce_on_stream", team, DType::dtype, \
                  Reduction::reduction, out, in, count);                                    \
  }
#define TENON_REDUCES(type, dtype)       \
  TENON_REDUCE(type, dtype, sum, kSum)   \
  TENON_REDUCE(type, dtype, prod, kProd) \
  TENON_REDUCE(type, dtype, min, kMin)   \
  TENON_REDUCE(type, dtype, max, kMax)
TENON_REDUCES(int8, kI8)
TENON_REDUCES(uint8, kU8)
TENON_REDUCES(int16, kI16)
TENON_REDUCES(uint16, kU16)
TENON_REDUCES(int32, kI32)
TENON_REDUCES(uint32, kU32)
TENON_REDUCES(int64, kI64)
TENON_REDUCES(uint64, kU64)
TENON_REDUCES(half, kF16)
TENON_REDUCES(bfloat16, kBF16)
TENON_REDUCES(float, kF32)
TENON_REDUCES(double, kF64)
