#include "kernels/llvm/loop/stages.h"

#include <algorithm>
#include <functional>

#include "graph_partitioner/ir/primitives.h"
#include "kernels/llvm/loop/reducers.h"
#include "kernels/llvm/tile_types.h"

namespace tenon::kernels {
namespace {

class StagePlanner {
 public:
  StagePlanner(const LoopProblem& problem, LoopSchedule& schedule, const StashRules& rules)
      : problem_(problem), body_(*problem.body), schedule_(schedule), rules_(rules) {
    for (int axis : problem.reduced_axes) reduced_ |= AxisSet{1} << axis;
  }

  void run() {
    for (const tiling::Access& load : problem_.loads) {
      schedule_.dependence[load.value] = problem_.is_baked(load.input) ? 0 : axes_of(load);
    }
    std::map<ir::ValueId, int> ready;  // stages that must be over before the value can be had
    for (ir::NodeId id : problem_.region) visit(id, ready);
    if (!problem_.reduced_axes.empty()) choose_stashes();
  }

 private:
  void visit(ir::NodeId id, std::map<ir::ValueId, int>& ready) {
    const ir::Node& node = body_.node(id);
    AxisSet axes = 0;
    int stage = 0;
    bool heavy = false;
    for (ir::ValueId operand : node.inputs) {
      if (operand == ir::kNoValue) continue;
      axes |= schedule_.dependence[operand];
      stage = std::max(stage, ready[operand]);
      heavy |= heavy_.contains(operand) && !is_reduction_result(operand);
    }
    if (const auto position = problem_.positions.find(id); position != problem_.positions.end()) {
      axes |= AxisSet{1} << position->second;
    }
    if (is_reduction(node)) {
      if (static_cast<int>(schedule_.stages.size()) <= stage) schedule_.stages.emplace_back();
      schedule_.stages[stage].push_back(id);
      axes &= ~reduced_;
      ++stage;
    } else {
      const ir::Primitive* primitive = ir::find_primitive(node.op);
      heavy |= primitive != nullptr && primitive->expensive;
    }
    for (ir::ValueId output : node.outputs) {
      if (output == ir::kNoValue) continue;
      schedule_.dependence[output] = axes;
      ready[output] = stage;
      if (heavy) heavy_.insert(output);
    }
  }

  bool is_reduction_result(ir::ValueId id) const {
    const ir::Node* producer = body_.producer(id);
    return producer != nullptr && is_reduction(*producer);
  }

  std::vector<ir::ValueId> targets(size_t stage) const {
    std::vector<ir::ValueId> values;
    if (stage < schedule_.stages.size()) {
      for (ir::NodeId id : schedule_.stages[stage]) values.push_back(body_.node(id).input(0));
      return values;
    }
    for (const LoopStore& store : problem_.stores) {
      if (axes_of(store.place) & reduced_) values.push_back(store.value);
    }
    return values;
  }

  void choose_stashes() {
    std::map<ir::ValueId, int> computed;  // value -> first stage that computes it
    for (size_t stage = 0; stage <= schedule_.stages.size(); ++stage) {
      std::set<ir::ValueId> here;
      const std::function<void(ir::ValueId)> walk = [&](ir::ValueId id) {
        const ir::Node* producer = body_.producer(id);
        const bool repeated = (schedule_.dependence[id] & reduced_) != 0;
        if (!repeated) return;
        if (problem_.find_load(id) != nullptr) {
          if (rules_.loads && here.insert(id).second && computed.contains(id)) {
            keep(id, computed[id]);
          }
          return;
        }
        if (producer == nullptr || is_reduction(*producer) || !here.insert(id).second) return;
        if (heavy_.contains(id) && computed.contains(id)) {
          keep(id, computed[id]);
          return;
        }
        for (ir::ValueId operand : producer->inputs) {
          if (operand != ir::kNoValue) walk(operand);
        }
      };
      for (ir::ValueId target : targets(stage)) walk(target);
      for (ir::ValueId id : here) computed.try_emplace(id, static_cast<int>(stage));
    }
  }

  void keep(ir::ValueId id, int stage) {
    if (schedule_.stashes.contains(id)) return;
    const DType type = compute_type(body_.value(id).dtype);
    const int store = rules_.outputs && type == DType::kF32 ? free_output() : -1;
    if (store < 0 && !take_scratch(type)) return;
    schedule_.stashes[id] = {stage, store};
  }

  // An f32 output as large as the domain may hold another value until it is written itself.
  int free_output() const {
    for (size_t i = 0; i < problem_.stores.size(); ++i) {
      const LoopStore& store = problem_.stores[i];
      const bool whole = std::none_of(store.place.strides.begin(), store.place.strides.end(),
                                      [](const Dim& stride) { return stride.is(0); });
      const bool taken =
          std::any_of(schedule_.stashes.begin(), schedule_.stashes.end(),
                      [&](const auto& stash) { return stash.second.store == static_cast<int>(i); });
      if (whole && !taken && body_.value(store.value).dtype == DType::kF32) {
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  bool take_scratch(DType type) {
    Dim elements = schedule_.lanes;
    for (int axis : schedule_.reduced_axes) {
      if (!schedule_.is_vector(axis)) elements = elements * problem_.domain[axis];
    }
    if (schedule_.vector_axis >= 0 && problem_.is_reduced(schedule_.vector_axis)) {
      elements = elements * ceil_div(schedule_.vector_size, Dim(schedule_.lanes));
    }
    if (!elements.is_constant()) return false;
    const int64_t bytes = elements.value() * bit_width(type) / 8;
    if (bytes > rules_.bytes - taken_bytes_) return false;
    taken_bytes_ += bytes;
    return true;
  }

  const LoopProblem& problem_;
  const ir::Graph& body_;
  LoopSchedule& schedule_;
  const StashRules& rules_;
  int64_t taken_bytes_ = 0;
  AxisSet reduced_ = 0;
  std::set<ir::ValueId> heavy_;  // an expensive op stands between the value and memory
};

}  // namespace

void plan_stages(const LoopProblem& problem, LoopSchedule& schedule, const StashRules& rules) {
  StagePlanner(problem, schedule, rules).run();
}

}  // namespace tenon::kernels
