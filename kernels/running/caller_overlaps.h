// Callers may bind an output to memory that an input lies in. Which inputs a Run must then read
// from copies of its own: those that some launch reads when another may have written that output
// already. Where a launch updates a buffer in place (ElidableCopy), nothing is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

class CallerOverlaps {
 public:
  // What a search gives, and what it keeps for the next one, of one run state.
  struct Found {
    std::vector<size_t> copied;      // callers: inputs, each once
    std::vector<size_t> by_address;  // all callers; a search finds most of them in order
  };

  // A caller is an input's or output's slot; they are numbered in the order of slots. The program
  // stays where it is.
  explicit CallerOverlaps(const Program& program);

  Found make_found() const;

  // `begins`: of each caller's buffer. Throws UserError where two outputs share memory, or where an
  // update in place gets buffers that overlap in part. Allocates nothing.
  void find(const ShapeInstance& instance, std::span<const uintptr_t> begins, Found& found) const;

  size_t slot(size_t caller) const { return callers_[caller].slot; }
  size_t size() const { return callers_.size(); }

 private:
  struct Use {
    size_t launch = 0;
    bool reads = false, writes = false;
  };
  struct Caller {
    size_t slot = 0;
    bool is_input = false;
    bool written_first = false;  // before any launch: an output that is sizes
    std::vector<Use> uses;       // in the order of launches
  };
  // A launch that copies an input to an output, and may be left out where they are one buffer:
  // those of its node, [first, end), know that they may be.
  struct Update {
    size_t from = 0, to = 0;  // callers
    size_t copy = 0, first = 0, end = 0;
  };
  // An input and an output whose memory overlaps.
  struct Pair {
    size_t input = 0, output = 0;
    bool is_same = false;  // all of it, from the first byte on
  };

  void add_updates();
  void judge(const ShapeInstance& instance, std::span<const uintptr_t> begins, size_t a, size_t b,
             Found& found) const;
  [[noreturn]] void refuse_outputs(size_t a, size_t b) const;
  void check_updates(const ShapeInstance& instance, std::span<const uintptr_t> begins,
                     const Pair& pair) const;
  bool must_copy(const ShapeInstance& instance, const Pair& pair) const;
  bool is_left_out(const ShapeInstance& instance, const Pair& pair, size_t launch) const;
  bool knows(const Pair& pair, size_t launch) const;
  bool is_in_place(const Pair& pair, size_t launch) const;

  const Program& program_;
  std::vector<Caller> callers_;
  std::vector<Update> updates_;
};

}  // namespace tenon::kernels
