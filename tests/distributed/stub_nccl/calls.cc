// NCCL's functions on host memory, with faults on demand. Everything happens under one lock.
#include <array>
#include <climits>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/distributed/stub_nccl/control.h"
#include "tests/distributed/stub_nccl/memory.h"
#include "tests/distributed/stub_nccl/world.h"

#define TENON_VISIBLE extern "C" __attribute__((visibility("default")))

using namespace stub_nccl;

namespace {

constexpr int kSuccess = 0, kSystemError = 2, kInvalidArgument = 4, kRemoteError = 6,
              kInProgress = 7;
constexpr int kForever = 1 << 20;

struct State {
  std::mutex mutex;
  std::condition_variable released;
  int version = 22809;
  std::map<std::string, int> faults;
  int blocked_until = 0;  // how often stubNcclRelease was called
  std::string last_error;
  std::map<int, std::shared_ptr<World>> worlds;  // by id
  int ids = 0;
  int max_ctas = 0;
  int graph_usage_mode = 0;
  bool has_windows = true;
  std::vector<Memory> memory;  // that was not freed
};

State& state() {
  static State& state = *new State;
  return state;
}

struct Group {
  int depth = 0, error = 0;
  bool is_spoilt = false;
  std::vector<Post> posts;
};
thread_local Group group;

struct Id {
  std::array<char, 128> bytes;
};

// 0, or the fault that this call of `function` has.
int take_fault(std::unique_lock<std::mutex>& lock, const char* function) {
  const auto found = state().faults.find(function);
  if (found == state().faults.end()) return 0;
  const int fault = found->second;
  state().faults.erase(found);
  if (fault == kStubRefuses) {
    state().last_error = std::string("the stub's ") + function + " was told to fail";
  } else if (fault == kStubFailsLater) {
    state().last_error = std::string("the stub's ") + function + " failed later";
  } else if (fault == kStubBlocks) {
    const int now = state().blocked_until;
    state().released.wait(lock, [&] { return state().blocked_until > now; });
    return kStubRefuses;  // its communicator may be gone
  }
  return fault;
}

int spoil(Communicator& communicator, int fault) {
  if (fault == kStubFailsLater) communicator.error = kRemoteError;
  if (fault == kStubNeverEnds) communicator.pending += kForever;
  return kInProgress;
}

int put(const char* function, const Post& wanted) {
  std::unique_lock lock(state().mutex);
  const int fault = take_fault(lock, function);
  if (fault == kStubRefuses) {
    group.error = group.depth > 0 ? kSystemError : 0;
    return kSystemError;
  }
  if (fault != 0) {
    group.is_spoilt = group.depth > 0;
    const int result = spoil(*wanted.by, fault);
    return group.depth > 0 ? kSuccess : result;
  }
  if (group.depth > 0) {
    group.posts.push_back(wanted);
    return kSuccess;
  }
  post(wanted);
  return wanted.by->state();
}

template <typename Value>
Value member(const void* config, size_t offset) {
  Value value;
  std::memcpy(&value, static_cast<const char*>(config) + offset, sizeof(Value));
  return value;
}

// By the published layouts, not by ours: that of 2.27 and, from 2.29 on, of 2.29.
bool is_config(const void* config) {
  if (config == nullptr) return false;
  const size_t size = member<size_t>(config, 0);
  const auto version = member<unsigned>(config, 12);
  const bool is_newer = state().version >= 22900;
  return size == (is_newer ? 88 : 72) && version == (is_newer ? 22900 : 22700) &&
         member<unsigned>(config, 8) == 0xcafebeef && member<int>(config, 16) == 0;
}

// Of functions that have no result to come later.
int refuse_or_block(const char* function) {
  std::unique_lock lock(state().mutex);
  return take_fault(lock, function) == 0 ? kSuccess : kSystemError;
}

int end(const char* function, Communicator* communicator) {
  std::unique_lock lock(state().mutex);
  const int fault = take_fault(lock, function);
  release(communicator);
  return fault == 0 ? kSuccess : kSystemError;
}

}  // namespace

TENON_VISIBLE void stubNcclSetVersion(int version) {
  const std::lock_guard lock(state().mutex);
  state().version = version;
}
TENON_VISIBLE void stubNcclFail(const char* function, int fault) {
  const std::lock_guard lock(state().mutex);
  state().faults[function] = fault;
}
TENON_VISIBLE void stubNcclRelease() {
  const std::lock_guard lock(state().mutex);
  ++state().blocked_until;
  state().faults.clear();
  state().released.notify_all();
}
TENON_VISIBLE int stubNcclLive() {
  const std::lock_guard lock(state().mutex);
  return live();
}
TENON_VISIBLE int stubNcclPending() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().faults.size());
}
TENON_VISIBLE int stubNcclMaxCtas() {
  const std::lock_guard lock(state().mutex);
  return state().max_ctas;
}

TENON_VISIBLE int stubNcclGraphUsageMode() {
  const std::lock_guard lock(state().mutex);
  return state().graph_usage_mode;
}
TENON_VISIBLE void stubNcclSetWindows(int has_windows) {
  const std::lock_guard lock(state().mutex);
  state().has_windows = has_windows != 0;
}
TENON_VISIBLE int stubNcclWindows() {
  const std::lock_guard lock(state().mutex);
  return window_count();
}
TENON_VISIBLE int stubNcclMemory() {
  const std::lock_guard lock(state().mutex);
  return static_cast<int>(state().memory.size());
}

TENON_VISIBLE int ncclGetVersion(int* version) {
  const std::lock_guard lock(state().mutex);
  *version = state().version;
  return kSuccess;
}
TENON_VISIBLE const char* ncclGetErrorString(int result) {
  return result == kSystemError   ? "unhandled system error (run with NCCL_DEBUG=INFO for details)"
         : result == kRemoteError ? "remote process exited or there was a network error"
                                  : "invalid argument or usage";
}
TENON_VISIBLE const char* ncclGetLastError(Communicator*) {
  const std::lock_guard lock(state().mutex);
  thread_local std::string copy;
  copy = state().last_error;
  return copy.c_str();
}

TENON_VISIBLE int ncclGetUniqueId(Id* id) {
  if (const int refused = refuse_or_block("ncclGetUniqueId"); refused != 0) return refused;
  const std::lock_guard lock(state().mutex);
  const int number = ++state().ids;
  id->bytes.fill('x');
  std::memcpy(id->bytes.data() + 124, &number, sizeof(number));
  return kSuccess;
}

TENON_VISIBLE int ncclCommInitRankConfig(Communicator** made, int size, Id id, int rank,
                                         void* config) {
  std::unique_lock lock(state().mutex);
  if (!is_config(config)) return kInvalidArgument;
  state().max_ctas = member<int>(config, 28);
  state().graph_usage_mode = state().version >= 22900 ? member<int>(config, 80) : INT_MIN;
  const int fault = take_fault(lock, "ncclCommInitRankConfig");
  if (fault == kStubRefuses) return kSystemError;
  std::shared_ptr<World>& world = state().worlds[member<int>(&id, 124)];
  if (world == nullptr) world = std::make_shared<World>(size);
  if (world->size() != size) return kInvalidArgument;
  *made = make(world, rank);
  if (fault != 0) return spoil(**made, fault);
  post({.kind = Kind::kInit, .by = *made});
  return (*made)->state();
}

TENON_VISIBLE int ncclCommSplit(Communicator* whole, int color, int key, Communicator** made,
                                void*) {
  const int result = put("ncclCommSplit", {.kind = Kind::kSplit,
                                           .root = color,
                                           .key = key,
                                           .made = reinterpret_cast<void**>(made),
                                           .by = whole});
  return result == kInProgress ? kSuccess : result;  // as NCCL 2.32 does
}

TENON_VISIBLE int ncclCommGetAsyncError(Communicator* communicator, int* error) {
  std::unique_lock lock(state().mutex);
  if (const int fault = take_fault(lock, "ncclCommGetAsyncError"); fault == kStubRefuses) {
    return kSystemError;
  } else if (fault != 0) {
    spoil(*communicator, fault);
  }
  if (auto& late = communicator->late; late.place != nullptr && --late.questions == 0) {
    *late.place = late.made;
    late = {};
  }
  *error = communicator->state();
  return kSuccess;
}

TENON_VISIBLE int ncclCommFinalize(Communicator* communicator) {
  std::unique_lock lock(state().mutex);
  const int fault = take_fault(lock, "ncclCommFinalize");
  if (fault == kStubRefuses) return kSystemError;
  return fault == 0 ? communicator->state() : spoil(*communicator, fault);
}
TENON_VISIBLE int ncclCommDestroy(Communicator* communicator) {
  return end("ncclCommDestroy", communicator);
}
TENON_VISIBLE int ncclCommAbort(Communicator* communicator) {
  return end("ncclCommAbort", communicator);
}

TENON_VISIBLE int ncclMemAlloc(void** memory, size_t bytes) {
  if (const int refused = refuse_or_block("ncclMemAlloc"); refused != 0) return refused;
  const std::lock_guard lock(state().mutex);
  const Memory made = allocate(bytes);
  if (made.begin == nullptr) return kSystemError;
  *memory = made.begin;
  state().memory.push_back(made);
  return kSuccess;
}
TENON_VISIBLE int ncclMemFree(void* memory) {
  const std::lock_guard lock(state().mutex);
  // Kept where NCCL still uses it: a test sees that it was not freed.
  if (is_registered(memory)) return kInvalidArgument;
  const size_t freed = std::erase_if(state().memory, [&](const Memory& each) {
    if (each.begin != memory) return false;
    free_memory(each);
    return true;
  });
  return freed == 1 ? kSuccess : kInvalidArgument;
}
TENON_VISIBLE int ncclCommWindowRegister(Communicator* by, void* memory, size_t bytes,
                                         Window** made, int flags) {
  if (flags != 1 || reinterpret_cast<uintptr_t>(memory) % 4096 != 0) return kInvalidArgument;
  *made = nullptr;
  {
    const std::lock_guard lock(state().mutex);
    by->world->has_windows = state().has_windows;
  }
  const int result = put("ncclCommWindowRegister", {.kind = Kind::kWindow,
                                                    .in = memory,
                                                    .count = bytes,
                                                    .made = reinterpret_cast<void**>(made),
                                                    .by = by});
  return result == kInProgress ? kSuccess : result;
}
TENON_VISIBLE int ncclCommWindowDeregister(Communicator* by, Window* window) {
  if (const int refused = refuse_or_block("ncclCommWindowDeregister"); refused != 0) return refused;
  const std::lock_guard lock(state().mutex);
  drop_window(*by, window);
  return kSuccess;
}

TENON_VISIBLE int ncclGroupStart() {
  if (const int refused = refuse_or_block("ncclGroupStart"); refused != 0) return refused;
  ++group.depth;
  return kSuccess;
}

TENON_VISIBLE int ncclGroupEnd() {
  std::unique_lock lock(state().mutex);
  if (group.depth == 0) return kInvalidArgument;
  if (--group.depth > 0) return kSuccess;
  const Group ended = std::exchange(group, {});
  if (ended.error != 0) return ended.error;
  const int fault = take_fault(lock, "ncclGroupEnd");
  if (fault == kStubRefuses) return kSystemError;
  if (ended.is_spoilt) return kInProgress;
  int result = kSuccess;
  for (const Post& wanted : ended.posts) {
    fault == 0 ? post(wanted) : static_cast<void>(spoil(*wanted.by, fault));
  }
  for (const Post& wanted : ended.posts) {
    if (wanted.by->state() != kSuccess) result = kInProgress;
  }
  return result;
}

TENON_VISIBLE int ncclAllReduce(const void* in, void* out, size_t count, int type, int operation,
                                Communicator* by, void*) {
  return put("ncclAllReduce", {.kind = Kind::kAllReduce,
                               .in = in,
                               .out = out,
                               .count = count,
                               .type = type,
                               .operation = operation,
                               .by = by});
}
TENON_VISIBLE int ncclReduce(const void* in, void* out, size_t count, int type, int operation,
                             int root, Communicator* by, void*) {
  return put("ncclReduce", {.kind = Kind::kReduce,
                            .in = in,
                            .out = out,
                            .count = count,
                            .type = type,
                            .operation = operation,
                            .root = root,
                            .by = by});
}
TENON_VISIBLE int ncclReduceScatter(const void* in, void* out, size_t count, int type,
                                    int operation, Communicator* by, void*) {
  return put("ncclReduceScatter", {.kind = Kind::kReduceScatter,
                                   .in = in,
                                   .out = out,
                                   .count = count,
                                   .type = type,
                                   .operation = operation,
                                   .by = by});
}
TENON_VISIBLE int ncclAllGather(const void* in, void* out, size_t count, int type, Communicator* by,
                                void*) {
  return put(
      "ncclAllGather",
      {.kind = Kind::kAllGather, .in = in, .out = out, .count = count, .type = type, .by = by});
}
TENON_VISIBLE int ncclAlltoAll(const void* in, void* out, size_t count, int type, Communicator* by,
                               void*) {
  return put(
      "ncclAlltoAll",
      {.kind = Kind::kAllToAll, .in = in, .out = out, .count = count, .type = type, .by = by});
}
TENON_VISIBLE int ncclBroadcast(const void* in, void* out, size_t count, int type, int root,
                                Communicator* by, void*) {
  return put("ncclBroadcast", {.kind = Kind::kBroadcast,
                               .in = in,
                               .out = out,
                               .count = count,
                               .type = type,
                               .root = root,
                               .by = by});
}
TENON_VISIBLE int ncclSend(const void* in, size_t count, int type, int peer, Communicator* by,
                           void*) {
  return put("ncclSend",
             {.kind = Kind::kSend, .in = in, .count = count, .type = type, .root = peer, .by = by});
}
TENON_VISIBLE int ncclRecv(void* out, size_t count, int type, int peer, Communicator* by, void*) {
  return put(
      "ncclRecv",
      {.kind = Kind::kReceive, .out = out, .count = count, .type = type, .root = peer, .by = by});
}
