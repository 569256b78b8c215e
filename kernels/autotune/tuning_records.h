// The records that a session has, and which of them speak of its machine.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/autotune/tuning_record.h"

namespace tenon::kernels {

class TuningRecords {
 public:
  // `here`: what records must have been measured on; empty: on any machine.
  // `problems`: what was told of others.
  TuningRecords(const std::vector<TuningRecord>& records, TuningMachine here,
                std::vector<std::string> problems = {});

  struct Ignored {
    RowRange rows;
    std::string reason;
  };
  struct Match {
    std::vector<TuningRecord> records;  // newest first, no two of the same rows
    std::vector<Ignored> ignored;       // the others of the fusion
  };
  Match find(std::string_view fingerprint) const;
  size_t usable() const;  // records of this machine
  const TuningMachine& machine() const { return here_; }
  const std::vector<std::string>& problems() const { return problems_; }
  std::string digest() const;  // of all records: ranks of one job have the same

 private:
  const TuningMachine here_;
  const std::vector<std::string> problems_;
  std::map<std::string, std::vector<TuningRecord>, std::less<>> by_fusion_;  // newest first
};

// Empty: the record counts here. Else what differs.
std::string why_of_another_machine(const TuningMachine& record, const TuningMachine& here);

}  // namespace tenon::kernels
