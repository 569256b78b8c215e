// Values of a loop's body at the point where the emitter stands: computed on demand, remembered
// while they stay true.
#pragma once

#include <map>
#include <vector>

#include "kernels/llvm/loop/elements.h"
#include "kernels/llvm/loop/places.h"

namespace tenon::kernels {

class Values {
 public:
  Values(LaunchWriter& writer, const LoopProblem& problem, const LoopSchedule& schedule,
         Places& places, Elements& elements)
      : writer_(writer),
        b_(writer.builder),
        problem_(problem),
        body_(*problem.body),
        schedule_(schedule),
        places_(places),
        elements_(elements) {}

  // Scratch for stashes without an output to stay in; before all other code.
  void allocate_stashes();

  Tile number(ir::ValueId id);  // in the compute type
  Tile codes(ir::ValueId id);   // what memory will hold
  // The result of a reduction that has just ended.
  void remember(ir::ValueId id, Tile tile) { numbers_.back()[id] = tile; }
  // Computes here, once, what every deeper point shares.
  void hoist();
  bool depends_on_lanes(ir::ValueId id) const;

  // Stages of reductions: a stashed value is kept in its own and read back in later ones.
  void enter_stage(size_t stage) { stage_ = stage; }
  void keep_stashes();

  // What is computed inside is forgotten afterwards.
  template <typename Inside>
  auto in_scope(const Inside& inside) {
    struct Scope {
      Values& values;
      explicit Scope(Values& owner) : values(owner) {
        for (Scopes* scopes : values.all_scopes()) scopes->emplace_back();
        values.places_.enter_scope();
      }
      ~Scope() {
        for (Scopes* scopes : values.all_scopes()) scopes->pop_back();
        values.places_.leave_scope();
      }
    } scope(*this);
    return inside();
  }

 private:
  using Scopes = std::vector<std::map<ir::ValueId, Tile>>;
  std::vector<Scopes*> all_scopes() { return {&numbers_, &codes_, &reciprocals_}; }
  static Tile find(const Scopes& scopes, ir::ValueId id);

  Tile compute(ir::ValueId id);
  Tile compute_codes(ir::ValueId id);
  std::vector<Tile> operands(const ir::Node& node);
  Tile load_number(const tiling::Access& load);
  Tile baked(ir::ValueId id);
  Tile fill(const tiling::Guard& guard);
  Tile position(const ir::Node& node);
  Tile dim_value(const ir::Node& node);

  bool is_hoistable(ir::ValueId id) const { return places_.is_open(schedule_.dependence.at(id)); }
  bool operands_known(const ir::Node& node) const;
  bool divides_by_sum(const ir::Node& node) const;
  bool has_sum(ir::ValueId id) const;
  Tile reciprocal(ir::ValueId id);

  bool is_stashed(ir::ValueId id) const;  // by an earlier stage
  Tile read_stash(ir::ValueId id);
  codegen::Access scratch_access(ir::ValueId id, bool lanes);

  LaunchWriter& writer_;
  codegen::Builder& b_;
  const LoopProblem& problem_;
  const ir::Graph& body_;
  const LoopSchedule& schedule_;
  Places& places_;
  Elements& elements_;
  Scopes numbers_, codes_, reciprocals_;
  std::map<ir::ValueId, Tile> scratch_;
  size_t stage_ = 0;
};

}  // namespace tenon::kernels
