// Inputs and outputs of one run state on a device: where the caller has them, and where launches
// find them. Launches read a copy of an input that an output is bound to memory of
// (caller_overlaps.h), and of one that they fetch from an address that is no multiple of 16 bytes.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/argument_layout.h"
#include "kernels/running/caller_overlaps.h"
#include "kernels/running/instances.h"

namespace tenon::kernels {

class CallerBuffers {
 public:
  // Called before memory goes that launches in flight read, or whose address graphs hold.
  using LetGo = std::function<void()>;

  CallerBuffers(const ArgumentLayout& layout, const CallerOverlaps& overlaps);

  // Takes the caller's addresses: whether anything is to be bound anew. A Run has hundreds of
  // buffers, and a warm one finds all of them where they were.
  bool take(RunContext& context, const RunShapes& shapes);
  // Writes where launches find each buffer. Throws UserError where buffers may not be where they
  // are.
  void bind(const std::shared_ptr<device::Device>& device, const ShapeInstance& instance,
            std::span<device::Address> slots, std::span<uint64_t> arguments, const LetGo& let_go);
  // Every buffer is at `stand_in`, until the next Run.
  void bind_all(device::Address stand_in, std::span<device::Address> slots,
                std::span<uint64_t> arguments);
  void unbind() { is_bound_ = false; }

  // What launches read instead of overlapping inputs, before anything is written; true where there
  // is something.
  bool enqueue_overlapped(device::Stream& stream, const ShapeInstance& instance) const;
  // What a launch fetches; likewise.
  bool enqueue_fetched(device::Stream& stream, const ShapeInstance& instance, size_t launch) const;

  // Of inputs and outputs, in the order of ArgumentLayout::callers.
  const std::vector<device::Address>& addresses() const { return addresses_; }

 private:
  void write(std::span<device::Address> slots, std::span<uint64_t> arguments) const;
  size_t bytes_of(const ShapeInstance& instance, size_t caller) const;
  static size_t bytes_of(const ShapeInstance& instance, const ArgumentLayout::Fetch& fetch);
  bool is_aligned(const ArgumentLayout::Fetch& fetch) const;

  const ArgumentLayout& layout_;
  const CallerOverlaps& overlaps_;
  std::vector<device::Address> addresses_;
  std::vector<device::Address> brought_;  // instead, where launches find each
  CallerOverlaps::Found found_;
  std::vector<device::Buffer> copies_;   // per caller, where a Run needed one
  std::vector<device::Buffer> aligned_;  // per fetch
  bool is_bound_ = false;
};

}  // namespace tenon::kernels
