#include "kernels/cudnn/graph_call.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "kernels/cudnn/handles.h"

namespace tenon::cudnn {
namespace {

constexpr uintptr_t kAlignment = 16;  // that plans count on

}  // namespace

GraphCall::SharedPlan& GraphCall::plan_for(std::span<const int64_t> numbers) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<SharedPlan>& kept = plans_[{numbers.begin(), numbers.end()}];
  if (kept != nullptr) return *kept;
  Rules rules = rules_;
  rules.workspace = numbers.back();
  const HandleLease handle(functions_, ordinal_, HandleLease::OnNone::kMake);
  PlanAnswer answer = make_plan(functions_, {.handle = handle.get()}, make_graph_(numbers), rules);
  if (!answer.plan) throw UserError(fmt::format("{}: {}", name_, answer.support.reason));
  kept = std::make_unique<SharedPlan>();
  kept->plan = std::move(*answer.plan);
  return *kept;
}

void GraphCall::enqueue(void* stream, std::span<void* const> buffers,
                        std::span<const int64_t> numbers) const {
  for (const void* buffer : buffers) {
    if (reinterpret_cast<uintptr_t>(buffer) % kAlignment == 0) continue;
    throw UserError(
        fmt::format("{}: an input or output is not at a multiple of {} bytes", name_, kAlignment));
  }
  SharedPlan& shared = plan_for(numbers);
  const HandleLease handle(functions_, ordinal_, HandleLease::OnNone::kWait);
  const std::lock_guard lock(shared.mutex);
  check(functions_, functions_.set_stream(handle.get(), stream), "cudnnSetStream");
  execute(functions_, handle.get(), shared.plan, buffers);
}

}  // namespace tenon::cudnn
