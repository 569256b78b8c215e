/* What libtenon_gloo.so does for the engine: Gloo has a C++ interface, so its headers stay behind
   this table of C functions, and the library may be absent. No exception comes out of them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised by whoever changes this file. */
#define TENON_GLOO_TABLE 1

/* An address of this host and the thread that reads from all its connections. */
typedef struct tenon_gloo_device tenon_gloo_device;
/* One connection to each of the other ranks. */
typedef struct tenon_gloo_mesh tenon_gloo_mesh;

typedef struct {
  int peer;
  void* memory; /* is not written where it is sent from */
  size_t bytes;
} tenon_gloo_transfer;

enum {
  TENON_GLOO_DONE,
  TENON_GLOO_LATE,    /* the time is up */
  TENON_GLOO_BROKEN,  /* a connection ended, or could not be made */
  TENON_GLOO_ABORTED, /* by abort() */
  TENON_GLOO_REFUSED  /* an address that is not this host's, no memory, and the like */
};

typedef struct {
  int outcome;
  char text[256];  /* what Gloo says of it */
  uint8_t* failed; /* of the caller, one for each rank: 1 is set for those it failed with */
} tenon_gloo_report;

typedef struct {
  /* Null, with a report, where it cannot be made. `address` is numeric, IPv4 or IPv6. */
  tenon_gloo_device* (*open_device)(const char* address, tenon_gloo_report* report);
  void (*close_device)(tenon_gloo_device* device); /* meshes of it may live on */

  /* `timeout_ms` is that of connect. */
  tenon_gloo_mesh* (*make_mesh)(tenon_gloo_device* device, int rank, int size, int64_t timeout_ms,
                                tenon_gloo_report* report);
  /* Where `peer` is to connect to: so many bytes, of which at most `capacity` are written;
     0: it has none. */
  size_t (*address_for)(tenon_gloo_mesh* mesh, int peer, char* bytes, size_t capacity);
  /* With what address_for said on the peer, which connects too. */
  int (*connect)(tenon_gloo_mesh* mesh, int peer, const char* bytes, size_t size,
                 tenon_gloo_report* report);

  /* Comes back when all is received and sent, or with an outcome after which the connections are
     closed and no memory is touched any more. A message goes where both sides name the same slot;
     they must agree on its size. One thread at a time. */
  int (*exchange)(tenon_gloo_mesh* mesh, uint64_t slot, const tenon_gloo_transfer* receives,
                  size_t receive_count, const tenon_gloo_transfer* sends, size_t send_count,
                  int64_t timeout_ms, tenon_gloo_report* report);
  /* From any thread: ends exchange, now and from now on, and closes the connections. */
  void (*abort)(tenon_gloo_mesh* mesh);
  void (*destroy_mesh)(tenon_gloo_mesh* mesh);
} tenon_gloo_functions;

/* The only symbol. Null: the library was built for another table. */
const tenon_gloo_functions* tenon_gloo_table(int table);

#ifdef __cplusplus
}
#endif
