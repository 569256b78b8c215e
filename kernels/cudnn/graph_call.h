// A problem of cuDNN's as a launch: plans by sizes, made when a run state gets those sizes and used
// by every Run with them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cudnn/plan.h"
#include "kernels/cudnn/problem.h"
#include "kernels/planning/library_call.h"

namespace tenon::cudnn {

class GraphCall final : public kernels::LibraryCall {
 public:
  // `numbers` of a Run: the sizes of graph_of(), then the bytes of workspace that there are.
  // Without `functions` it only says what it is. Whether an engine was fast enough to be chosen is
  // decided: what was chosen runs, if need be by a slow one.
  GraphCall(const Functions* functions, int ordinal, Problem problem, Rules rules)
      : functions_(functions), ordinal_(ordinal), problem_(std::move(problem)), rules_(rules) {
    rules_.only_fast = false;
  }
  // Of saved(). Throws UserError for other bytes.
  static std::shared_ptr<const GraphCall> from_saved(std::string_view bytes,
                                                     const Functions* functions, int ordinal);

  const Problem& problem() const { return problem_; }
  std::string name() const override { return std::string(cudnn::name(problem_)); }
  std::string saved() const override;
  kernels::CallForm form() const override { return form_of(problem_); }
  void prepare(std::span<const int64_t> numbers) const override { plan_for(numbers); }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override;
  // By the next engine: cuDNN 9.14 names some that fail when they run.
  std::string replace(const kernels::PlanFailed& failed,
                      std::span<const int64_t> numbers) const override;

 private:
  // cuDNN does not say that threads may share one.
  struct SharedPlan {
    std::mutex mutex;
    ExecutionPlan plan;
    std::vector<ExecutionPlan> failed;  // kept as the others are
  };
  SharedPlan& plan_for(std::span<const int64_t> numbers) const;
  PlanAnswer make(std::span<const int64_t> numbers, const std::vector<EngineChoice>& failed) const;

  const Functions* const functions_;
  const int ordinal_;
  const Problem problem_;
  Rules rules_;
  mutable std::mutex mutex_;
  // All that ever were: CUDA graphs hold code that belongs to them.
  mutable std::map<std::vector<int64_t>, std::unique_ptr<SharedPlan>> plans_;
};

}  // namespace tenon::cudnn
