// What was measured of one fusion on one machine: proto/tuning.proto as a value.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/autotune/text_message.h"
#include "kernels/planning/kernel_config.h"

namespace tenon::kernels {

// What times depend on beside the fusion. Empty or 0: not known, and fits everything.
struct TuningMachine {
  std::string arch;   // "sm_90a", "aarch64+dotprod+i8mm"
  int sm_count = 0;   // threads of a processor
  int clock_mhz = 0;  // 0: not known
  std::string name;   // for people
  std::string tenon;  // versions
  std::string driver, library;

  std::string text() const;  // "sm_90a, 132 SMs, 1980 MHz"
  bool operator==(const TuningMachine&) const = default;
};

struct RecordedKernel {
  std::string candidate;
  KernelConfig config;

  std::string text() const;  // "pipelined: tile 128x8, 4 stages"
  bool operator==(const RecordedKernel&) const = default;
};

struct TuningRecord {
  std::string fusion;       // for people
  std::string fingerprint;  // FusionKey's
  RowRange rows;
  TuningMachine machine;
  RecordedKernel kernel;
  double microseconds = 0;
  RecordedKernel untuned;  // without a candidate: not told
  double untuned_microseconds = 0;
  std::string date;
  std::vector<TextField> unknown = {};  // fields of a newer Tenon, kept

  // Records of one key speak of the same thing: the newest counts.
  std::string key() const;
  std::string text() const;  // "pipelined: tile 128x8; 10.2 us measured, untuned 12.0 us"
  TextMessage to_message() const;
  static TuningRecord from_message(const TextMessage& message);  // throws UserError
};

}  // namespace tenon::kernels
