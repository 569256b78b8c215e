// Which candidates run a node, and why the others do not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/planning/plan.h"

namespace tenon::kernels {

struct Verdict {
  std::string_view candidate;
  Support support;
};

// The plan of one candidate, for some of the node's rows.
struct PartChoice {
  std::string_view candidate;
  RowRange rows;
  Plan plan;
};

// What records had to do with a range of rows.
struct TuningNote {
  RowRange rows;
  bool used = false;
  std::string text;  // the kernel and its times, or why there is none
  struct Way {
    std::string candidate;
    PlannedKernel kernel;
  };
  std::vector<Way> ways = {};  // of a record: its own; else those that there are
};

struct Choice {
  std::vector<PartChoice> parts;  // by rows, without gaps; empty: nobody can, see reason()
  std::vector<Verdict> verdicts;  // in table order, those behind the winner included
  // Where the settings have records:
  std::string fusion = {}, fingerprint = {};  // as records name it
  std::vector<TuningNote> tuning = {};        // by rows
  std::vector<RowRange> untuned = {};         // where an estimate chose
  std::string used_records = {};              // in the form of a tuning file; empty: none

  bool ok() const { return !parts.empty(); }
  std::string chosen() const;  // "flash_decode"; "flash_decode (rows <= 16), prefill (rows > 16)"
  std::string reason() const;
  double microseconds() const;  // expected of its first range of rows; 0: nobody knows
  // Of the only part; tests look at what was made of it.
  Lowered lower() const { return parts.at(0).plan.lower(); }
};

}  // namespace tenon::kernels
