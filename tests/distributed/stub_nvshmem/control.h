// What tests tell the stub of NVSHMEM, by functions that it exports beside NVSHMEM's. All of it
// holds for the process that says it.
#pragma once

// How a call of a function goes wrong, once.
enum StubNvshmemFault : int {
  kStubNvshmemRefuses = 1,  // it answers with an error, or gives nothing
  kStubNvshmemBlocks,       // it does not come back
  kStubNvshmemTeamOfOne,    // the team that it makes has one rank
};

using StubNvshmemSetVersion = void (*)(int version);                // stubNvshmemSetVersion
using StubNvshmemFail = void (*)(const char* function, int fault);  // stubNvshmemFail
// stubNvshmemShareGpu: ranks share a GPU, with MPS or without.
using StubNvshmemShareGpu = void (*)(bool has_mps);
using StubNvshmemPending = int (*)();  // stubNvshmemPending: faults that no call has met yet
// stubNvshmemLive: teams and memory that were not given back, and one for a job that has not ended.
using StubNvshmemLive = int (*)();
