// What tests tell the stub of cuDNN, by functions that it exports beside cuDNN's.
#pragma once

#include <cstdint>

using StubSetVersion = void (*)(int version);     // stubCudnnSetVersion
using StubFail = void (*)(const char* function);  // stubCudnnFail: the next call of it, once
using StubPending = int (*)();                    // stubCudnnPending: faults that no call has met
using StubLive = int (*)();  // stubCudnnLive: descriptors that are not destroyed
using StubCalls = int (*)(const char* function);   // stubCudnnCalls: since the library was opened
using StubSetWorkspace = void (*)(int64_t bytes);  // stubCudnnSetWorkspace: that engines ask for
using StubLastEngine = int (*)();                  // stubCudnnLastEngine: of the plan executed last

// The engines of every graph. Heuristics name the first three, in this order, then kStubSlow.
inline constexpr int kStubWinograd = 3, kStubTensorCore = 1, kStubPlain = 2, kStubSlow = 0;
