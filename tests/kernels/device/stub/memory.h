// Device and pinned memory of the stub: an address space of its own, in which nothing is ever
// handed out twice, so that a pointer to freed memory is known for what it is.
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "kernels/device/driver.h"

namespace tenon::stub {

using device::Address;

struct Allocation {
  Address base = 0;
  size_t bytes = 0;
  int device = 0;
  bool pinned = false;

  bool holds(Address address, size_t count) const {
    return address >= base && address - base <= bytes && count <= bytes - (address - base);
  }
};

class AddressSpace {
 public:
  // Null where the address space is used up. New memory is filled with 0xff: floats read NaN.
  const Allocation* allocate(size_t bytes, int device, bool pinned);
  // Gone, with what was found wrong about its surroundings; false: no allocation begins there.
  bool release(Address base);
  const Allocation* find(Address address) const;     // null: not in a live one
  bool contains(Address address) const;              // live, freed or never handed out
  bool overrun(const Allocation& allocation) const;  // something was written behind its end
  std::string describe(Address address) const;       // "freed memory", "no memory of the GPU" …
  const std::map<Address, Allocation>& live() const { return live_; }

 private:
  void reserve();

  Address begin_ = 0, next_ = 0, end_ = 0;
  std::map<Address, Allocation> live_;
  std::map<Address, size_t> freed_;
};

}  // namespace tenon::stub
