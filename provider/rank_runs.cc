#include "provider/rank_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "kernels/device/stream.h"

namespace tenon::provider {
namespace {

constexpr size_t kLongestText = 4000;

}  // namespace

RankRuns::RankRuns(std::shared_ptr<distributed::Job> job, std::string partition,
                   std::vector<std::string> inputs)
    : job_(std::move(job)), partition_(std::move(partition)), inputs_(std::move(inputs)) {}

void RankRuns::announce(kernels::RunContext& run) {
  job_->announce(fmt::format("Run {} of {}", ++runs_, partition_),
                 {{{"shapes of inputs", shapes_text(inputs_, run)}}});
}

void RankRuns::watch(const std::shared_ptr<device::Device>& device, void* stream) const {
  device::Stream on(device, static_cast<device::StreamHandle>(stream));
  if (on.capturing()) return;
  const auto end = std::make_shared<device::Event>(device);
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

std::string shapes_text(const std::vector<std::string>& names, kernels::RunContext& run) {
  std::string text;
  for (size_t first = 0; first < names.size();) {
    const auto dims = run.input(first).dims;
    size_t end = first + 1;
    while (end < names.size() && std::ranges::equal(run.input(end).dims, dims)) ++end;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", names[first]);
    if (end - first > 1) text += fmt::format(" to {} ({} inputs)", names[end - 1], end - first);
    text += fmt::format(" [{}]", fmt::join(dims, ","));
    first = end;
  }
  if (text.size() <= kLongestText) return text;
  return fmt::format("{}… sha256 {}", text.substr(0, kLongestText), hex(sha256(text)));
}

}  // namespace tenon::provider
