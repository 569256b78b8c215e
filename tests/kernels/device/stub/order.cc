#include "tests/kernels/device/stub/order.h"

#include <fmt/format.h>

#include <algorithm>

namespace tenon::stub {

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other) clock[stream] = std::max(clock[stream], count);
}

std::string AccessHistory::conflict(const Range& range, const Access& access, const WorkTime& time,
                                    const std::string& work) {
  const auto unordered = [&](const Mark& mark) {
    const auto known = time.clock->find(mark.stream);
    return mark.stream != time.stream && (known == time.clock->end() || known->second < mark.stamp);
  };
  const auto text = [&](const Mark& mark, const char* did) {
    return fmt::format("missing wait: {} on stream {} {} memory that {} on stream {} {}", work,
                       time.stream, access.writes ? "writes" : "reads", mark.work, mark.stream,
                       did);
  };
  if (range.written && unordered(*range.written)) return text(*range.written, "wrote");
  if (!access.writes) return {};
  for (const auto& [stream, mark] : range.read) {
    if (unordered(mark)) return text(mark, "reads");
  }
  return {};
}

std::string AccessHistory::add(const Access& access, const WorkTime& time,
                               const std::string& work) {
  std::string found;
  Ranges& ranges = allocations_[access.base];
  const Address end = access.begin + access.bytes;
  for (auto entry = ranges.begin(); entry != ranges.end() && entry->first < end; ++entry) {
    if (!found.empty() || entry->first + entry->second.bytes <= access.begin) continue;
    found = conflict(entry->second, access, time, work);
  }
  Range& range = ranges[access.begin];
  range.bytes = std::max(range.bytes, access.bytes);
  const Mark mark{time.stream, time.stamp, work};
  if (access.writes) {
    range.written = mark;
    range.read.clear();
  } else {
    range.read[time.stream] = mark;
  }
  return found;
}

void AccessHistory::retire(int stream) {
  for (auto& [base, ranges] : allocations_) {
    for (auto& [begin, range] : ranges) {
      if (range.written && range.written->stream == stream) range.written.reset();
      range.read.erase(stream);
    }
  }
}

void AccessHistory::forget(Address base) { allocations_.erase(base); }

}  // namespace tenon::stub
