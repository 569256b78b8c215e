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
  Rules rules = rules_;
  rules.workspace = numbers.back();
  const Graph graph = graph_of(problem_, numbers.first(numbers.size() - 1));
  const HandleLease handle(*functions_, ordinal_, HandleLease::OnNone::kMake);
  PlanAnswer answer = make_plan(*functions_, {.handle = handle.get()}, graph, rules);
  if (!answer.plan) throw UserError(fmt::format("{}: {}", name(), answer.support.reason));
  kept = std::make_unique<SharedPlan>();
  kept->plan = std::move(*answer.plan);
  return *kept;
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
  execute(*functions_, handle.get(), shared.plan, buffers);
}

}  // namespace tenon::cudnn
