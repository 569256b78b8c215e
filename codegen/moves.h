// Operations that move elements without computing: where each element of the result comes from.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "codegen/layouts.h"
#include "codegen/tile/ir.h"

namespace tenon::codegen {

// Broadcast, reshape, transpose, slice, concat, permute, and bitcasts to narrower elements.
bool is_move(const Kernel& kernel, const Operation& op);

struct Origin {
  int operand = 0;
  int64_t element = 0;  // of that operand, row-major
  int part = 0;         // of the element, low bits first; other than 0 for bitcasts only
};
Origin origin_of(const Kernel& kernel, const Operation& op, int64_t element);

// Layouts by bits on one side of a move, from those on the other side, such that nothing changes
// threads. Nothing: there is none.
std::optional<Layout> moved_forward(const Kernel& kernel, const Operation& op, const Layout& from);
std::optional<Layout> moved_backward(const Kernel& kernel, const Operation& op, size_t operand,
                                     const Layout& to);

// Where [n, m] lies that a transpose makes of sums [m, n] in place. Nothing where no sums fit.
std::optional<Layout> turned_sums(const std::vector<int>& shape, int threads);

// Where the results of a reduction along `axis` lie if lanes of a warp combine what they hold, and
// how far apart those are. Nothing: some of it is in other warps.
struct WarpReduction {
  Layout result;
  std::vector<int> distances;
};
std::optional<WarpReduction> reduced_in_warp(const Layout& from, int axis);

// True if what the result has of this operand is in the same thread already, and in the same
// register for all of them.
bool stays_in_thread(const Kernel& kernel, const Operation& op, size_t operand, const Layout& from,
                     const Layout& to);

// For each register of the result the register of an operand that holds the same element in every
// thread. Nothing: some element has to change threads.
struct RegisterOrigin {
  int operand = 0, reg = 0, part = 0;
};
std::optional<std::vector<RegisterOrigin>> registers_of_move(const Kernel& kernel,
                                                             const Operation& op,
                                                             const std::vector<Layout>& layouts);
// The same for a tile that only changes its layout.
std::optional<std::vector<int>> registers_in_place(const Layout& from, const Layout& to);
// The first of them by looking at every thread: for sizes that are no powers of two.
std::optional<std::vector<RegisterOrigin>> enumerate_registers_of_move(
    const Kernel& kernel, const Operation& op, const std::vector<Layout>& layouts);

}  // namespace tenon::codegen
