// Ranks as processes, on host memory: Gloo's connections over TCP.
//
// Messages go between ranks directly, and whoever reduces does it as element_ops.h says, from the
// first rank to the last: every element is reduced by one rank, or by all in the same way, so that
// all get the same bits, and those of loopback. A call that differs between ranks finds no partner
// and ends with the deadline.
#pragma once

#include <memory>
#include <string>

#include "base/support.h"
#include "distributed/communicator.h"
#include "distributed/gloo/mesh.h"

namespace tenon::distributed {

struct GlooSettings {
  Communicator::Settings common;
  // Of this host, to which the others connect: numeric, or a name. Where they are on several hosts,
  // address_towards (address.h) tells which one reaches the store.
  std::string address = "127.0.0.1";
  std::string note{};  // why it is not another engine, for engine()
};

// Whether libtenon_gloo.so and Gloo are there.
Support gloo_support();

// Comes back when all ranks have called it. `store` is one in which no communicator was made
// before, under `name`; its ranks are those of the communicator. Throws CollectiveError, and
// UserError where Gloo is absent or the address is wrong.
std::unique_ptr<Communicator> make_gloo(int rank, int size, KeyValues store,
                                        const GlooSettings& settings = {},
                                        const std::string& name = "gloo");

}  // namespace tenon::distributed
