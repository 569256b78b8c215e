#include "tests/kernels/device/stub/launch_window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace tenon::stub {
namespace {

constexpr std::byte kPoison{0xff};  // floats read NaN

uintptr_t address_of(const std::byte* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

}  // namespace

void LaunchWindow::Ranges::add(uintptr_t begin, uintptr_t end) {
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) {
    --next;
    begin = next->first;
  }
  while (next != ends_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace_hint(next, begin, end);
}

bool LaunchWindow::Ranges::meet(uintptr_t begin, uintptr_t end) const {
  const auto next = ends_.lower_bound(end);
  return next != ends_.begin() && std::prev(next)->second > begin;
}

void LaunchWindow::clear() { launches_.clear(); }

void LaunchWindow::begin(std::string name, unsigned seed) {
  current_ = {};
  current_.name = std::move(name);
  random_.seed(seed);
  poisons_ = random_() % 2 == 0;
}

std::vector<std::string> LaunchWindow::end() {
  launches_.push_back(std::move(current_));
  return std::exchange(findings_, {});
}

// The first so many launches of the window.
size_t LaunchWindow::perhaps_running(bool before_wait) const {
  if (before_wait || launches_.empty()) return launches_.size();
  return launches_.back().has_waited ? 0 : launches_.size() - 1;
}

// Every second time the earliest of all.
LaunchWindow::Moment LaunchWindow::sample(size_t perhaps_running) {
  if (perhaps_running == 0 || random_() % 2 == 0) return {0, 0, perhaps_running};
  const size_t launch = random_() % (perhaps_running + 1);
  if (launch == perhaps_running) return {launch, 0, launch};  // all have ended by chance
  return {launch, random_() % (launches_[launch].writes.size() + 1), perhaps_running};
}

void LaunchWindow::begin_task() {
  before_wait_ = sample(perhaps_running(true));
  after_wait_ = sample(perhaps_running(false));
}

const std::byte* LaunchWindow::read(const std::byte* from, size_t bytes, bool before_wait) {
  const uintptr_t begin = address_of(from), end = begin + bytes;
  current_.touched.add(begin, end);
  if (current_.written.meet(begin, end)) return from;  // what it wrote itself
  const Moment& moment = before_wait ? before_wait_ : after_wait_;
  for (size_t i = moment.launch; i < moment.end; ++i) {
    if (launches_[i].written.meet(begin, end)) return as_of(moment, begin, bytes);
  }
  return from;
}

// Takes back, from the last to the first, what has not happened yet. What a launch behind those
// wrote stays.
const std::byte* LaunchWindow::as_of(const Moment& moment, uintptr_t begin, size_t bytes) {
  view_.resize(bytes);
  std::memcpy(view_.data(), reinterpret_cast<const std::byte*>(begin), bytes);
  std::vector<bool> stays(bytes);
  for (size_t i = launches_.size(); i-- > moment.launch;) {
    const Launch& launch = launches_[i];
    const size_t first = i == moment.launch ? moment.writes : 0;
    for (size_t number = launch.writes.size(); number-- > first;) {
      const Write& write = launch.writes[number];
      const uintptr_t from = std::max(begin, write.begin);
      const uintptr_t to = std::min(begin + bytes, write.begin + write.bytes);
      for (uintptr_t at = from; at < to; ++at) {
        if (i >= moment.end) stays[at - begin] = true;
        if (stays[at - begin]) continue;
        view_[at - begin] = poisons_ ? kPoison : launch.before[write.before + (at - write.begin)];
      }
    }
  }
  return view_.data();
}

void LaunchWindow::write(std::byte* to, size_t bytes, bool before_wait) {
  const uintptr_t begin = address_of(to), end = begin + bytes;
  for (size_t i = 0; i < perhaps_running(before_wait); ++i) {
    if (!launches_[i].touched.meet(begin, end)) continue;
    std::string finding =
        fmt::format("{} writes{} what {} touches, which may still run", current_.name,
                    before_wait ? ", before its wait," : "", launches_[i].name);
    if (std::ranges::count(findings_, finding) == 0) findings_.push_back(std::move(finding));
  }
  current_.touched.add(begin, end);
  current_.written.add(begin, end);
  current_.writes.push_back({begin, bytes, current_.before.size()});
  current_.before.insert(current_.before.end(), to, to + bytes);
}

}  // namespace tenon::stub
