// NCCL as a table of functions, loaded by name. Types are our own: no NCCL header is needed to
// build. What is absent or too old is a reason.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/dtype.h"
#include "base/support.h"
#include "distributed/loaded_library.h"
#include "distributed/reduction.h"

namespace tenon::distributed {

using NcclResult = int;  // ncclResult_t
inline constexpr NcclResult kNcclSuccess = 0, kNcclInProgress = 7;

using NcclHandle = struct OpaqueNcclCommunicator*;
using NcclWindow = struct OpaqueNcclWindow*;  // ncclWindow_t: registered memory
// NCCL_WIN_COLL_SYMMETRIC: ranks pass what lies at the same distance from its begin.
inline constexpr int kNcclSymmetric = 1;

// ncclUniqueId: where the ranks of one communicator find each other.
struct NcclId {
  std::array<char, 128> bytes{};
};

// ncclConfig_t as of 2.27 and, longer, 2.29. Later ones add members at the end, and every NCCL
// takes a shorter one of an earlier version: what it does not hold has NCCL's default.
struct NcclConfig {
  explicit NcclConfig(int nccl_version);
  static constexpr int kDefault = INT_MIN;
  size_t size;
  unsigned magic = 0xcafebeef;
  unsigned version;
  int blocking = kDefault;
  int cga_cluster_size = kDefault;
  int min_ctas = kDefault, max_ctas = kDefault;
  const char* net_name = nullptr;
  int split_share = kDefault;
  int traffic_class = kDefault;
  const char* name = nullptr;
  int collnet = kDefault;
  int cta_policy = kDefault;
  int shrink_share = kDefault;
  int nvls_ctas = kDefault;
  int channels_per_net_peer = kDefault;
  int nvlink_centric_schedule = kDefault;
  int graph_usage_mode = kDefault;  // 1: graphs mix neither with each other nor with launches
  int rma_contexts = kDefault;
};
static_assert(sizeof(NcclConfig) == 88 && sizeof(NcclId) == 128);

// Versions as ncclGetVersion codes them: 22809 is 2.28.9.
inline constexpr int kOldestNccl = 22700;
std::string nccl_version_text(int version);  // "2.28.9"
bool has_all_to_all(int version);            // ncclAlltoAll; else sends and receives in a group
bool has_graph_usage_mode(int version);
// CTAs of a communicator at most: what was asked for, else 32 on GPUs of compute capability 10,
// where NCCL's own default became 16 with 2.28; nothing: NCCL's default.
std::optional<int> nccl_max_ctas(int version, int compute_major, int asked);

// ncclDataType_t of elements that are to be reduced, by GPUs that can or cannot add fp8 (sm_90 on).
// Moved are bytes, whatever the type.
inline constexpr int kNcclBytes = 1;
struct NcclType {
  Support answer;
  int code = 0;
};
NcclType nccl_type(DType dtype, Reduction reduction, bool adds_fp8);
int nccl_reduction(Reduction reduction);  // ncclRedOp_t

struct NcclFunctions {
#define TENON_NCCL_FUNCTIONS(F)                                                           \
  F(get_unique_id, "ncclGetUniqueId", (NcclId * id))                                      \
  F(init, "ncclCommInitRankConfig",                                                       \
    (NcclHandle * made, int size, NcclId id, int rank, NcclConfig* config))               \
  F(split, "ncclCommSplit",                                                               \
    (NcclHandle whole, int color, int key, NcclHandle* made, NcclConfig* config))         \
  F(finalize, "ncclCommFinalize", (NcclHandle handle))                                    \
  F(destroy, "ncclCommDestroy", (NcclHandle handle))                                      \
  F(abort, "ncclCommAbort", (NcclHandle handle))                                          \
  F(async_error, "ncclCommGetAsyncError", (NcclHandle handle, NcclResult * error))        \
  F(group_start, "ncclGroupStart", ())                                                    \
  F(group_end, "ncclGroupEnd", ())                                                        \
  F(all_reduce, "ncclAllReduce",                                                          \
    (const void* in, void* out, size_t count, int type, int reduction, NcclHandle handle, \
     void* stream))                                                                       \
  F(reduce, "ncclReduce",                                                                 \
    (const void* in, void* out, size_t count, int type, int reduction, int root,          \
     NcclHandle handle, void* stream))                                                    \
  F(reduce_scatter, "ncclReduceScatter",                                                  \
    (const void* in, void* out, size_t count, int type, int reduction, NcclHandle handle, \
     void* stream))                                                                       \
  F(all_gather, "ncclAllGather",                                                          \
    (const void* in, void* out, size_t count, int type, NcclHandle handle, void* stream)) \
  F(broadcast, "ncclBroadcast",                                                           \
    (const void* in, void* out, size_t count, int type, int root, NcclHandle handle,      \
     void* stream))                                                                       \
  F(send, "ncclSend",                                                                     \
    (const void* in, size_t count, int type, int peer, NcclHandle handle, void* stream))  \
  F(receive, "ncclRecv",                                                                  \
    (void* out, size_t count, int type, int peer, NcclHandle handle, void* stream))       \
  F(allocate, "ncclMemAlloc", (void** memory, size_t bytes))                              \
  F(free, "ncclMemFree", (void* memory))                                                  \
  F(register_window, "ncclCommWindowRegister",                                            \
    (NcclHandle handle, void* memory, size_t bytes, NcclWindow* made, int flags))         \
  F(deregister_window, "ncclCommWindowDeregister", (NcclHandle handle, NcclWindow window))

#define TENON_DECLARE(member, symbol, parameters) NcclResult(*member) parameters = nullptr;
  TENON_NCCL_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
  const char* (*error_text)(NcclResult result) = nullptr;
  const char* (*last_error)(NcclHandle handle) = nullptr;
  // Null before 2.28.
  NcclResult (*all_to_all)(const void* in, void* out, size_t count, int type, NcclHandle handle,
                           void* stream) = nullptr;

  int version = 0;
  std::string path;

  // "unhandled system error: connect to … failed", in NCCL's words.
  std::string words(NcclResult result, NcclHandle handle) const;
};

using NcclAnswer = LoadedLibrary<NcclFunctions>;

// The first of these that is an NCCL of 2.27 or newer.
NcclAnswer load_nccl(std::span<const std::string> paths);
// The one of this process: TENON_NCCL_LIBRARY names a file, else libnccl.so.2 is looked for where
// vendor_library.h says. Loaded once, never closed.
const NcclAnswer& nccl();

}  // namespace tenon::distributed
