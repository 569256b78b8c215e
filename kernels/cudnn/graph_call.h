// A cuDNN graph as a launch: plans by sizes, made when a run state gets those sizes and used by
// every Run with them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cudnn/plan.h"
#include "kernels/planning/library_call.h"

namespace tenon::cudnn {

class GraphCall final : public kernels::LibraryCall {
 public:
  // `numbers` of a Run: what `make_graph` reads, then the bytes of workspace that there are.
  using MakeGraph = std::function<Graph(std::span<const int64_t> numbers)>;
  GraphCall(const Functions& functions, int ordinal, std::string name, MakeGraph make_graph,
            Rules rules)
      : functions_(functions),
        ordinal_(ordinal),
        name_(std::move(name)),
        make_graph_(std::move(make_graph)),
        rules_(rules) {}

  std::string name() const override { return name_; }
  void prepare(std::span<const int64_t> numbers) const override { plan_for(numbers); }
  void enqueue(void* stream, std::span<void* const> buffers,
               std::span<const int64_t> numbers) const override;

 private:
  // cuDNN does not say that threads may share one.
  struct SharedPlan {
    std::mutex mutex;
    ExecutionPlan plan;
  };
  SharedPlan& plan_for(std::span<const int64_t> numbers) const;

  const Functions& functions_;
  const int ordinal_;
  const std::string name_;
  const MakeGraph make_graph_;
  const Rules rules_;
  mutable std::mutex mutex_;
  // All that ever were: CUDA graphs hold code that belongs to them.
  mutable std::map<std::vector<int64_t>, std::unique_ptr<SharedPlan>> plans_;
};

}  // namespace tenon::cudnn
