// What tests tell the stub of NCCL, by functions that it exports beside NCCL's.
#pragma once

// How a call of a function goes wrong, once.
enum StubFault : int {
  kStubRefuses = 1,  // it answers with an error
  kStubFailsLater,   // it answers "in progress", and then there is an error
  kStubNeverEnds,    // it answers "in progress" for ever
  kStubBlocks,       // it does not come back until stubNcclRelease
};

using StubSetVersion = void (*)(int version);                // stubNcclSetVersion
using StubFail = void (*)(const char* function, int fault);  // stubNcclFail
using StubRelease = void (*)();                              // stubNcclRelease
using StubLive = int (*)();     // stubNcclLive: communicators that were not destroyed or aborted
using StubPending = int (*)();  // stubNcclPending: faults that no call has met yet
using StubMaxCtas = int (*)();  // stubNcclMaxCtas: of the last communicator that was made
using StubGraphUsageMode = int (*)();  // stubNcclGraphUsageMode: the same; INT_MIN: not told
using StubSetWindows = void (*)(int has_windows);  // stubNcclSetWindows: 0 makes none, in silence
using StubWindows = int (*)();  // stubNcclWindows: of live communicators, not deregistered
using StubMemory = int (*)();   // stubNcclMemory: pieces of ncclMemAlloc that were not freed
