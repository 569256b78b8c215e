#include "kernels/cudnn/graph_call.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "kernels/cudnn/handles.h"
#include "kernels/cudnn/versions.h"

namespace tenon::cudnn {
namespace {

constexpr uintptr_t kAlignment = 16;  // that plans count on

}  // namespace

std::string GraphCall::saved() const {
  kernels::SavedWriter to;
  write(problem_, to);
  to.flag(rules_.tensor_cores);
  to.flag(rules_.wanted.has_value());
  if (rules_.wanted) {
    to.number(rules_.wanted->place);
    to.number(rules_.wanted->engine);
  }
  return to.take();
}

std::shared_ptr<const GraphCall> GraphCall::from_saved(std::string_view bytes,
                                                       const Functions* functions, int ordinal) {
  kernels::SavedReader from(bytes);
  Problem problem = read_problem(from, functions == nullptr ? kOldest : functions->version);
  Rules rules;
  rules.tensor_cores = from.flag();
  if (from.flag()) {
    EngineChoice& wanted = rules.wanted.emplace();
    wanted.place = from.number();
    wanted.engine = from.number();
  }
  from.end();
  return std::make_shared<const GraphCall>(functions, ordinal, std::move(problem), rules);
}

GraphCall::SharedPlan& GraphCall::plan_for(std::span<const int64_t> numbers) const {
  if (functions_ == nullptr) throw InternalError(name() + " was read to be looked at");
  const std::lock_guard lock(mutex_);
  std::unique_ptr<SharedPlan>& kept = plans_[{numbers.begin(), numbers.end()}];
  if (kept != nullptr) return *kept;
  PlanAnswer answer = make(numbers, {});
  if (!answer.plan) throw UserError(fmt::format("{}: {}", name(), answer.support.reason));
  kept = std::make_unique<SharedPlan>();
  kept->plan = std::move(*answer.plan);
  return *kept;
}

PlanAnswer GraphCall::make(std::span<const int64_t> numbers,
                           const std::vector<EngineChoice>& failed) const {
  Rules rules = rules_;
  rules.workspace = numbers.back();
  rules.failed = failed;
  const Graph graph = graph_of(problem_, numbers.first(numbers.size() - 1));
  const HandleLease handle(*functions_, ordinal_, HandleLease::OnNone::kMake);
  return make_plan(*functions_, {.handle = handle.get()}, graph, rules);
}

std::string GraphCall::replace(const kernels::PlanFailed& failed,
                               std::span<const int64_t> numbers) const {
  SharedPlan& shared = plan_for(numbers);
  const std::lock_guard lock(shared.mutex);
  if (shared.failed.size() == failed.failures_before) {  // else another Run was here before
    std::vector<EngineChoice> without = {shared.plan.chosen};
    for (const ExecutionPlan& plan : shared.failed) without.push_back(plan.chosen);
    PlanAnswer answer = make(numbers, without);
    if (!answer.plan) throw UserError(fmt::format("{}; no other engine does it", failed.what()));
    shared.failed.push_back(std::exchange(shared.plan, std::move(*answer.plan)));
  }
  return fmt::format("engine {}", shared.plan.chosen.engine);
}

void GraphCall::enqueue(void* stream, std::span<void* const> buffers,
                        std::span<const int64_t> numbers) const {
  for (const void* buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer) % kAlignment == 0) continue;
    throw UserError(
        fmt::format("{}: an input or output is not at a multiple of {} bytes", name(), kAlignment));
  }
  SharedPlan& shared = plan_for(numbers);
  const HandleLease handle(*functions_, ordinal_, HandleLease::OnNone::kWait);
  const std::lock_guard lock(shared.mutex);
  check(*functions_, functions_->set_stream(handle.get(), stream), "cudnnSetStream");
  try {
    execute(*functions_, handle.get(), shared.plan, buffers);
  } catch (const CallFailed& failed) {
    throw kernels::PlanFailed(
        fmt::format("{}: engine {}: {}", name(), shared.plan.chosen.engine, failed.what()),
        shared.failed.size());
  }
}

}  // namespace tenon::cudnn
