// Heads brought to where an attention kernel reads them, as launches in front of it:
//
//   place_heads   new heads of q, k and v: normed, rotated, to scratch or behind a cache's past
//   copy_past    the past of a cache, and zeros behind the new rows, where present is not past's
//                 own memory: left out at Run where it is (ElidableCopy)
//   zero_behind_lengths   keys or values of each batch row, and zeros behind its length, for
//                 libraries that multiply what they hide
//
// A task of place_heads has one token and some heads; one of the others some rows of one head. The
// same code serves the host and GPUs, with tiles of one head or of several.
#pragma once

#include <vector>

#include "kernels/llvm/attention/problem.h"
#include "kernels/llvm/launch_writer.h"
#include "kernels/planning/lowered.h"

namespace tenon::kernels {

// Rows of the past that stay, of batch row `batch`; past, keys and all_keys are declared.
codegen::ValueId kept_rows(LaunchWriter& writer, const AttentionProblem& problem,
                           codegen::ValueId lengths, codegen::ValueId batch);

struct HeadTiles {
  int heads;               // of a token in one tile
  int64_t heads_per_task;  // a multiple of it
  int rows;                // of a cache in one tile
  Dim rows_per_task;
  int columns;  // at most
  int threads;  // of a CTA

  static HeadTiles for_host(const AttentionProblem& problem);
  static HeadTiles for_gpu();
  // Width of a tile over so many elements.
  int width_of(int64_t elements) const;
};

// Heads of each token of one operand.
struct NewHeads {
  ir::ValueId from = ir::kNoValue;
  HeadStrides from_strides = {};
  int64_t heads = 0, depth = 0;
  BufferArgument to = {};
  HeadStrides to_strides = {};
  bool behind_past = false;  // rows of `to` are those of a cache
  bool rotated = false;
  ir::ValueId norm = ir::kNoValue;
};
// That positions, or the lengths that they follow from, name rows which the angles have.
std::vector<IndexCheck> position_checks(const AttentionProblem& problem);

Launch place_heads_launch(const ir::Graph& graph, const AttentionProblem& problem,
                          const std::vector<NewHeads>& operands, const HeadTiles& tiles);

struct PastRows {
  ir::ValueId past;
  ir::ValueId present;  // kNoValue: `to` is scratch
  BufferArgument to;
  int64_t depth;  // elements of a row
};
Launch copy_past_launch(const ir::Graph& graph, const AttentionProblem& problem,
                        const PastRows& cache, const HeadTiles& tiles);

// All heads of keys or values, whose elements follow each other. `to` is [batch, heads, all_keys,
// depth]; `problem` has kv_lengths.
struct CountedRows {
  BufferArgument from;
  HeadStrides from_strides;
  BufferArgument to;
  DType dtype{};
  int64_t depth = 0;
};
Launch zero_behind_lengths_launch(const ir::Graph& graph, const AttentionProblem& problem,
                                  const CountedRows& counted, const HeadTiles& tiles);

}  // namespace tenon::kernels
