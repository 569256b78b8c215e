#include "provider/rank_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace tenon::provider {
namespace {

constexpr size_t kLongestText = 4000;
constexpr size_t kHeads = 1;  // the dim of caches

std::string dims_text(std::span<const int64_t> dims, bool by_heads) {
  std::vector<std::string> texts;
  for (const int64_t dim : dims) texts.push_back(std::to_string(dim));
  if (by_heads && texts.size() > kHeads) texts[kHeads] = "own heads";
  return fmt::format("[{}]", fmt::join(texts, ","));
}

// But for the number of heads.
bool are_alike(std::span<const int64_t> first, std::span<const int64_t> second, bool by_heads) {
  if (first.size() != second.size()) return false;
  for (size_t axis = 0; axis < first.size(); ++axis) {
    if (first[axis] != second[axis] && !(by_heads && axis == kHeads)) return false;
  }
  return true;
}

}  // namespace

RankRuns::RankRuns(std::shared_ptr<distributed::Job> job, std::string partition,
                   std::vector<std::string> inputs,
                   const std::optional<distributed::ShardingReport>& sharding)
    : job_(std::move(job)), partition_(std::move(partition)), inputs_(std::move(inputs)) {
  if (!sharding) return;
  for (const distributed::CacheShare& cache : sharding->caches) {
    by_heads_.insert(cache.inputs.begin(), cache.inputs.end());
  }
}

bool RankRuns::note_dims(kernels::RunContext& run) {
  bool differ = dims_.size() != inputs_.size();
  dims_.resize(inputs_.size());
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const std::span<const int64_t> dims = run.input(i).dims;
    if (std::ranges::equal(dims, dims_[i])) continue;
    dims_[i].assign(dims.begin(), dims.end());
    differ = true;
  }
  return differ;
}

void RankRuns::announce(kernels::RunContext& run) {
  if (note_dims(run) || shapes_.fields.empty()) {
    shapes_ = {{{"shapes of inputs", shapes_text(inputs_, by_heads_, dims_)}}};
  }
  job_->announce(fmt::format("Run {} of {}", ++runs_, partition_), shapes_);
}

std::shared_ptr<device::Event> RankRuns::free_event(const std::shared_ptr<device::Device>& device) {
  const auto free =
      std::ranges::find_if(events_, [](const auto& event) { return event.use_count() == 1; });
  if (free != events_.end()) return *free;
  return events_.emplace_back(std::make_shared<device::Event>(device));
}

void RankRuns::watch(const std::shared_ptr<device::Device>& device, void* stream) {
  device::Stream on(device, static_cast<device::StreamHandle>(stream));
  if (on.capturing()) return;
  const std::shared_ptr<device::Event> end = free_event(device);
  on.record(*end);
  job_->watch([end] {
    try {
      return end->done();
    } catch (const std::exception&) {
      return true;  // a device that failed has nothing in flight
    }
  });
}

void RankRuns::give_up() const {
  try {
    throw;
  } catch (const UserError& error) {
    throw UserError(job_->give_up(error.what()));
  } catch (const std::exception& error) {
    throw distributed::CollectiveError(job_->give_up(error.what()));
  }
}

std::string shapes_text(const std::vector<std::string>& names,
                        const std::set<std::string>& by_heads, const InputDims& dims) {
  std::string text;
  for (size_t first = 0; first < names.size();) {
    const bool own = by_heads.contains(names[first]);
    size_t end = first + 1;
    while (end < names.size() && by_heads.contains(names[end]) == own &&
           are_alike(dims[end], dims[first], own)) {
      ++end;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", names[first]);
    if (end - first > 1) text += fmt::format(" to {} ({} inputs)", names[end - 1], end - first);
    text += " " + dims_text(dims[first], own);
    first = end;
  }
  if (text.size() <= kLongestText) return text;
  return fmt::format("{}… sha256 {}", text.substr(0, kLongestText), hex(sha256(text)));
}

}  // namespace tenon::provider
