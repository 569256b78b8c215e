// Files of tuning records: read with whatever is wrong in them told, merged, and written whole.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/autotune/tuning_record.h"

namespace tenon::kernels {

struct TuningFile {
  std::vector<TuningRecord> records;  // one for each key, sorted by it
  std::vector<std::string> problems;  // a sentence for each record that was dropped

  // A record that cannot be read is dropped: the next one begins at a line with "record {".
  static TuningFile parse(std::string_view text);
  // Throws UserError where there is no file that can be read.
  static TuningFile read(const std::string& path);
  // Of two records of one key the newer stays, of the same date the one that was given.
  void merge(const std::vector<TuningRecord>& others);
  std::string print() const;
};

// Merges records into the file at `path`, which may be absent. One process at a time does so, under
// a lock on the file `path`.lock, and readers see the old file or the new one. Records in it that
// cannot be read are left out of the new file: the answer holds what was told of them. Throws
// UserError where it cannot be written, or another process keeps the lock for so long.
TuningFile update_tuning_file(const std::string& path, const std::vector<TuningRecord>& records,
                              std::chrono::milliseconds patience = std::chrono::seconds(30));

}  // namespace tenon::kernels
