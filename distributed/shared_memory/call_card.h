// A call as ranks show it to each other: of one size, so that it fits into shared memory.
#pragma once

#include <cstdint>

#include "distributed/communicator.h"

namespace tenon::distributed {

struct CallCard {
  char op[16];
  int64_t number, elements;
  uint64_t details;  // a hash of all of them
  int32_t dtype;
  char detail[68];  // as much as fits

  static CallCard of(const CollectiveCall& call);
  CollectiveCall call() const;
  bool is_same_call(const CallCard& other) const;
  // A send and the receive of it differ in their names.
  bool is_same_message(const CallCard& other) const;
};

}  // namespace tenon::distributed
