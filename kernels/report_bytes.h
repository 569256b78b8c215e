// What a program's report tells of its fusions, as bytes.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "kernels/planning/saved_form.h"
#include "kernels/running/executable.h"

namespace tenon::kernels {

void write_reports(const std::vector<FusionReport>& fusions, SavedWriter& writer);
// `words` keeps what verdicts refer to.
std::vector<FusionReport> read_reports(SavedReader& reader, std::set<std::string>& words);

}  // namespace tenon::kernels
