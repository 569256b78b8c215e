// A GPU as plain data: read from a text file (specs/, one per architecture) or from the driver.
// Everything up to machine code is made from this alone.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/support.h"
#include "codegen/target.h"
#include "kernels/device/driver.h"

namespace tenon::device {

struct Description {
  std::string name;  // "NVIDIA H200"
  std::string arch;  // "sm_90a"; a newer GPU than we know is "sm_90" with `forward` set
  bool forward = false;
  int compute_major = 0, compute_minor = 0;
  int sm_count = 0;
  int64_t memory_bytes = 0, l2_bytes = 0;
  int64_t shared_bytes = 0;  // per CTA, after opting in
  double memory_gb_s = 0;    // from clocks and bus width; 0: unknown
  int clock_mhz = 0;         // that the SMs may reach; 0: unknown
  std::string pci_bus_id;    // "0000:1b:00.0"; empty: not a device of this machine
  int ordinal = -1;          // the driver's number; -1: likewise

  codegen::GpuTarget target() const;
  std::string text() const;  // parses back
};

Description parse_description(std::string_view text);  // throws UserError naming the line
// "sm_90a" and so on, compiled in from specs/; throws UserError listing what is known.
Description named_description(std::string_view arch);
// GPU `number` of the driver. Refused where it is too old or does not answer.
Support describe(const Driver& driver, int number, Description& description);

}  // namespace tenon::device
