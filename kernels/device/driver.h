// The CUDA driver as a table of functions, loaded by name when first asked for. Types are our own:
// no CUDA header is needed to build. TENON_DRIVER_LIBRARY names another library with the same
// functions (the stub driver of the tests).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/support.h"

namespace tenon::device {

using Result = int;  // CUresult; 0 is success
inline constexpr Result kSuccess = 0, kOutOfMemory = 2, kNotReady = 600;

using Ordinal = int;       // CUdevice
using Address = uint64_t;  // CUdeviceptr
using ContextHandle = struct OpaqueContext*;
using StreamHandle = struct OpaqueStream*;
using EventHandle = struct OpaqueEvent*;
using ModuleHandle = struct OpaqueModule*;
using FunctionHandle = struct OpaqueFunction*;
using GraphHandle = struct OpaqueGraph*;
using GraphExecHandle = struct OpaqueGraphExec*;

// CUlaunchConfig and what it points to.
struct LaunchAttribute {
  enum Id : int { kClusterDimension = 4, kProgrammaticSerialization = 6 };
  struct Cluster {
    unsigned x, y, z;
  };
  int id = 0;
  int padding = 0;
  union Value {
    char bytes[64] = {};
    Cluster cluster;
    int allowed;
  } value;
};
struct LaunchConfig {
  unsigned grid_x = 0, grid_y = 1, grid_z = 1;
  unsigned block_x = 0, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  StreamHandle stream = nullptr;
  LaunchAttribute* attributes = nullptr;
  unsigned attribute_count = 0;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

// CUipcMemHandle: names memory of a GPU in other processes.
struct IpcHandle {
  char bytes[64] = {};
};

// CUtensorMap: how TMA reads a matrix. Only the driver knows what the words mean.
struct alignas(64) TensorMap {
  uint64_t words[16] = {};
};

struct Driver {
#define TENON_DRIVER_FUNCTIONS(F)                                                                  \
  F(init, "cuInit", (unsigned flags))                                                              \
  F(driver_version, "cuDriverGetVersion", (int* version))                                          \
  F(error_name, "cuGetErrorName", (Result result, const char** text))                              \
  F(error_text, "cuGetErrorString", (Result result, const char** text))                            \
  F(device_count, "cuDeviceGetCount", (int* count))                                                \
  F(device_get, "cuDeviceGet", (Ordinal * device, int number))                                     \
  F(device_name, "cuDeviceGetName", (char* name, int size, Ordinal device))                        \
  F(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, Ordinal device))                        \
  F(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, Ordinal device))         \
  F(device_pci_bus_id, "cuDeviceGetPCIBusId", (char* text, int size, Ordinal device))              \
  F(primary_retain, "cuDevicePrimaryCtxRetain", (ContextHandle * context, Ordinal device))         \
  F(primary_release, "cuDevicePrimaryCtxRelease_v2", (Ordinal device))                             \
  F(set_current, "cuCtxSetCurrent", (ContextHandle context))                                       \
  F(synchronize, "cuCtxSynchronize", ())                                                           \
  F(memory_info, "cuMemGetInfo_v2", (size_t * free, size_t * total))                               \
  F(allocate, "cuMemAlloc_v2", (Address * address, size_t bytes))                                  \
  F(release, "cuMemFree_v2", (Address address))                                                    \
  F(allocate_pinned, "cuMemHostAlloc", (void** memory, size_t bytes, unsigned flags))              \
  F(release_pinned, "cuMemFreeHost", (void* memory))                                               \
  F(pointer_attribute, "cuPointerGetAttribute", (void* data, int attribute, Address address))      \
  F(copy_async, "cuMemcpyAsync", (Address to, Address from, size_t bytes, StreamHandle stream))    \
  F(fill_async, "cuMemsetD8Async",                                                                 \
    (Address to, unsigned char value, size_t bytes, StreamHandle stream))                          \
  F(stream_create, "cuStreamCreate", (StreamHandle * stream, unsigned flags))                      \
  F(stream_create_with_priority, "cuStreamCreateWithPriority",                                     \
    (StreamHandle * stream, unsigned flags, int priority))                                         \
  F(priority_range, "cuCtxGetStreamPriorityRange", (int* least, int* greatest))                    \
  F(stream_destroy, "cuStreamDestroy_v2", (StreamHandle stream))                                   \
  F(stream_query, "cuStreamQuery", (StreamHandle stream))                                          \
  F(stream_synchronize, "cuStreamSynchronize", (StreamHandle stream))                              \
  F(stream_wait, "cuStreamWaitEvent", (StreamHandle stream, EventHandle event, unsigned flags))    \
  F(stream_capturing, "cuStreamIsCapturing", (StreamHandle stream, int* status))                   \
  F(begin_capture, "cuStreamBeginCapture_v2", (StreamHandle stream, int mode))                     \
  F(end_capture, "cuStreamEndCapture", (StreamHandle stream, GraphHandle * graph))                 \
  F(event_create, "cuEventCreate", (EventHandle * event, unsigned flags))                          \
  F(event_destroy, "cuEventDestroy_v2", (EventHandle event))                                       \
  F(event_record, "cuEventRecord", (EventHandle event, StreamHandle stream))                       \
  F(event_query, "cuEventQuery", (EventHandle event))                                              \
  F(event_synchronize, "cuEventSynchronize", (EventHandle event))                                  \
  F(event_elapsed, "cuEventElapsedTime", (float* ms, EventHandle first, EventHandle second))       \
  F(module_load, "cuModuleLoadDataEx",                                                             \
    (ModuleHandle * module, const void* image, unsigned options, int* keys, void** values))        \
  F(module_unload, "cuModuleUnload", (ModuleHandle module))                                        \
  F(module_function, "cuModuleGetFunction",                                                        \
    (FunctionHandle * function, ModuleHandle module, const char* name))                            \
  F(function_set, "cuFuncSetAttribute", (FunctionHandle function, int attribute, int value))       \
  F(function_attribute, "cuFuncGetAttribute",                                                      \
    (int* value, int attribute, FunctionHandle function))                                          \
  F(launch, "cuLaunchKernel",                                                                      \
    (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream,               \
     void** arguments, void** extra))                                                              \
  F(graph_instantiate, "cuGraphInstantiateWithFlags",                                              \
    (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags))                         \
  F(graph_update, "cuGraphExecUpdate_v2",                                                          \
    (GraphExecHandle exec, GraphHandle graph, void* result_info))                                  \
  F(graph_launch, "cuGraphLaunch", (GraphExecHandle exec, StreamHandle stream))                    \
  F(graph_destroy, "cuGraphDestroy", (GraphHandle graph))                                          \
  F(graph_exec_destroy, "cuGraphExecDestroy", (GraphExecHandle exec))

// Null where the driver is too old for them: who needs one asks.
#define TENON_OPTIONAL_DRIVER_FUNCTIONS(F)                                                    \
  F(launch_with, "cuLaunchKernelEx",                                                          \
    (const LaunchConfig* config, FunctionHandle function, void** arguments, void** extra))    \
  F(ipc_export, "cuIpcGetMemHandle", (IpcHandle * handle, Address address))                   \
  F(ipc_open, "cuIpcOpenMemHandle_v2", (Address * address, IpcHandle handle, unsigned flags)) \
  F(ipc_close, "cuIpcCloseMemHandle", (Address address))                                      \
  F(encode_tensor_map, "cuTensorMapEncodeTiled",                                              \
    (TensorMap * descriptor, int type, uint32_t rank, void* base, const uint64_t* sizes,      \
     const uint64_t* strides, const uint32_t* box, const uint32_t* steps, int interleaving,   \
     int swizzle, int promotion, int fill))

#define TENON_DECLARE(member, symbol, parameters) Result(*member) parameters = nullptr;
  TENON_DRIVER_FUNCTIONS(TENON_DECLARE)
  TENON_OPTIONAL_DRIVER_FUNCTIONS(TENON_DECLARE)
#undef TENON_DECLARE
};

// Loaded and initialised once per process. Refused: no library, a function missing, a driver too
// old, no permission; the reason says what to do.
struct DriverAnswer {
  Support support;
  const Driver* driver = nullptr;
  std::string path;  // of the library that answered
  int version = 0;   // 13000: CUDA 13.0
};
const DriverAnswer& driver();

// The child of a fork may not use the parent's driver, and a process that is exiting has none left:
// destructors ask before they call.
bool driver_within_reach();

}  // namespace tenon::device
