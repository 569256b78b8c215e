#include <algorithm>
#include <set>

#include "kernels/llvm/loop/problem.h"

namespace tenon::kernels {
namespace {

using tiling::BlockTerm;

// An element number as a sum over axes: the part of an access, or of the indices that it gathers
// by, which merging must preserve.
struct IndexSum {
  Dim* offset;
  std::vector<Dim>* strides;
  std::vector<BlockTerm>* blocks;
};

std::vector<IndexSum> index_sums(LoopProblem& problem) {
  std::vector<IndexSum> sums;
  const auto add = [&](tiling::Access& access) {
    sums.push_back({&access.offset, &access.strides, &access.blocks});
    for (tiling::GatherTerm& term : access.gathers) {
      sums.push_back({&term.indices_offset, &term.indices_strides, &term.indices_blocks});
    }
  };
  for (tiling::Access& load : problem.loads) add(load);
  for (LoopStore& store : problem.stores) add(store.place);
  return sums;
}

// Axes that something speaks of by number: their coordinate is needed as it is.
std::set<int> named_axes(const LoopProblem& problem) {
  std::set<int> axes;
  for (const tiling::Access& load : problem.loads) {
    for (const tiling::Guard& guard : load.guards) {
      for (const tiling::Bound& bound : guard.bounds) axes.insert(bound.axis);
    }
  }
  for (const auto& [node, axis] : problem.positions) axes.insert(axis);
  if (problem.ordered_axis >= 0) axes.insert(problem.ordered_axis);
  return axes;
}

const BlockTerm* block_along(const IndexSum& sum, int axis) {
  for (const BlockTerm& block : *sum.blocks) {
    if (block.axis == axis) return &block;
  }
  return nullptr;
}

// Whether x_outer * size + x_inner addresses the same elements in `sum`.
bool merges(const IndexSum& sum, int outer, const Dim& inner_size) {
  if (block_along(sum, outer) != nullptr) return false;
  const Dim& outer_stride = (*sum.strides)[outer];
  const Dim& inner_stride = (*sum.strides)[outer + 1];
  const BlockTerm* block = block_along(sum, outer + 1);
  if (block == nullptr) return outer_stride == inner_stride * inner_size;
  const bool whole_blocks = block->step.is(1) && block->offset.is(0) && inner_stride.is(0) &&
                            mod(inner_size, Dim(block->divisor)).is(0);
  return whole_blocks && outer_stride == block->stride * floor_div(inner_size, Dim(block->divisor));
}

class AxisMerger {
 public:
  explicit AxisMerger(LoopProblem problem)
      : problem_(std::move(problem)), named_(named_axes(problem_)), sums_(index_sums(problem_)) {
    for (size_t axis = 0; axis < problem_.domain.size(); ++axis) {
      reduced_.push_back(problem_.is_reduced(static_cast<int>(axis)));
    }
  }

  LoopProblem run() {
    for (int axis = rank() - 1; axis >= 0; --axis) {
      if (problem_.domain[axis].is(1) && !named_.contains(axis)) drop(axis);
    }
    for (int axis = rank() - 2; axis >= 0; --axis) {
      if (can_merge(axis)) merge(axis);
    }
    problem_.reduced_axes.clear();
    for (int axis = 0; axis < rank(); ++axis) {
      if (reduced_[axis]) problem_.reduced_axes.push_back(axis);
    }
    return std::move(problem_);
  }

 private:
  int rank() const { return static_cast<int>(problem_.domain.size()); }

  bool can_merge(int outer) const {
    if (named_.contains(outer) || named_.contains(outer + 1)) return false;
    if (reduced_[outer] != reduced_[outer + 1]) return false;
    return std::all_of(sums_.begin(), sums_.end(), [&](const IndexSum& sum) {
      return merges(sum, outer, problem_.domain[outer + 1]);
    });
  }

  // The only coordinate along an axis of size 1 is 0.
  void drop(int axis) {
    for (const IndexSum& sum : sums_) {
      std::erase_if(*sum.blocks, [&](const BlockTerm& block) {
        if (block.axis != axis) return false;
        *sum.offset = *sum.offset + block.stride * floor_div(block.offset, Dim(block.divisor));
        return true;
      });
    }
    erase_axis(axis);
  }

  void merge(int outer) {
    problem_.domain[outer + 1] = problem_.domain[outer] * problem_.domain[outer + 1];
    erase_axis(outer);
  }

  void erase_axis(int axis) {
    problem_.domain.erase(problem_.domain.begin() + axis);
    reduced_.erase(reduced_.begin() + axis);
    for (const IndexSum& sum : sums_) {
      sum.strides->erase(sum.strides->begin() + axis);
      for (BlockTerm& block : *sum.blocks) block.axis -= block.axis > axis;
    }
    for (tiling::Access& load : problem_.loads) {
      for (tiling::Guard& guard : load.guards) {
        for (tiling::Bound& bound : guard.bounds) bound.axis -= bound.axis > axis;
      }
    }
    for (auto& [node, position] : problem_.positions) position -= position > axis;
    problem_.ordered_axis -= problem_.ordered_axis > axis;
    std::set<int> named;
    for (int name : named_) named.insert(name - (name > axis));
    named_ = std::move(named);
  }

  LoopProblem problem_;
  std::set<int> named_;
  std::vector<IndexSum> sums_;
  std::vector<bool> reduced_;
};

}  // namespace

bool LoopProblem::is_reduced(int axis) const {
  return std::binary_search(reduced_axes.begin(), reduced_axes.end(), axis);
}

const tiling::Access* LoopProblem::find_load(ir::ValueId value) const {
  for (const tiling::Access& load : loads) {
    if (load.value == value) return &load;
  }
  return nullptr;
}

bool LoopProblem::is_baked(ir::ValueId value) const {
  const ir::Value& known = body->value(value);
  return known.is_constant() && known.constant->elements() == 1;
}

LoopProblem merge_axes(LoopProblem problem) { return AxisMerger(std::move(problem)).run(); }

}  // namespace tenon::kernels
