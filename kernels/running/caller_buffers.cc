#include "kernels/running/caller_buffers.h"

#include <algorithm>

namespace tenon::kernels {

using device::Address;
using device::Buffer;

namespace {

constexpr Address kFetchAlignment = 16;

void make_room(const std::shared_ptr<device::Device>& device, Buffer& copy, size_t bytes,
               std::string_view what, const CallerBuffers::LetGo& let_go) {
  if (bytes <= copy.bytes()) return;
  let_go();
  copy = Buffer();
  copy = Buffer(device, bytes, what);
}

}  // namespace

CallerBuffers::CallerBuffers(const ArgumentLayout& layout, const CallerOverlaps& overlaps)
    : layout_(layout),
      overlaps_(overlaps),
      addresses_(layout.callers.size()),
      brought_(layout.callers.size()),
      found_(overlaps.make_found()),
      copies_(layout.callers.size()),
      aligned_(layout.fetches.size()) {}

bool CallerBuffers::take(RunContext& context, const RunShapes& shapes) {
  for (size_t i = 0; i < layout_.callers.size(); ++i) {
    const ArgumentLayout::Caller& caller = layout_.callers[i];
    const void* data = caller.is_input
                           ? shapes.inputs[caller.index].data
                           : context.output(caller.index, shapes.instance->outputs[caller.index]);
    const auto address = reinterpret_cast<Address>(data);
    if (addresses_[i] == address) continue;
    addresses_[i] = address;
    is_bound_ = false;
  }
  return !is_bound_;
}

void CallerBuffers::bind(const std::shared_ptr<device::Device>& device,
                         const ShapeInstance& instance, std::span<Address> slots,
                         std::span<uint64_t> arguments, const LetGo& let_go) {
  overlaps_.find(instance, addresses_, found_);
  brought_ = addresses_;
  for (const size_t caller : found_.copied) {
    make_room(device, copies_[caller], bytes_of(instance, caller),
              "a copy of an input, since an output is bound to memory of it", let_go);
    brought_[caller] = copies_[caller].address();
  }
  write(slots, arguments);
  for (size_t i = 0; i < layout_.fetches.size(); ++i) {
    const ArgumentLayout::Fetch& fetch = layout_.fetches[i];
    if (is_aligned(fetch)) continue;
    make_room(device, aligned_[i], bytes_of(instance, fetch),
              "an input that begins at no multiple of 16 bytes", let_go);
    arguments[fetch.patch.position] = aligned_[i].address();
  }
  is_bound_ = true;
}

void CallerBuffers::bind_all(Address stand_in, std::span<Address> slots,
                             std::span<uint64_t> arguments) {
  std::ranges::fill(brought_, stand_in);
  write(slots, arguments);
  is_bound_ = false;
}

void CallerBuffers::write(std::span<Address> slots, std::span<uint64_t> arguments) const {
  for (size_t i = 0; i < layout_.callers.size(); ++i) slots[layout_.callers[i].slot] = brought_[i];
  for (const ArgumentLayout::Patch& patch : layout_.patches) {
    arguments[patch.position] = brought_[patch.caller];
  }
}

bool CallerBuffers::enqueue_overlapped(device::Stream& stream,
                                       const ShapeInstance& instance) const {
  for (const size_t caller : found_.copied) {
    stream.copy(brought_[caller], addresses_[caller], bytes_of(instance, caller));
  }
  return !found_.copied.empty();
}

bool CallerBuffers::enqueue_fetched(device::Stream& stream, const ShapeInstance& instance,
                                    size_t launch) const {
  const auto of_launch =
      std::ranges::equal_range(layout_.fetches, launch, {}, &ArgumentLayout::Fetch::launch);
  bool copied = false;
  for (const ArgumentLayout::Fetch& fetch : of_launch) {
    if (is_aligned(fetch)) continue;
    const Buffer& copy = aligned_[static_cast<size_t>(&fetch - layout_.fetches.data())];
    stream.copy(copy.address(), brought_[fetch.patch.caller], bytes_of(instance, fetch));
    copied = true;
  }
  return copied;
}

bool CallerBuffers::is_aligned(const ArgumentLayout::Fetch& fetch) const {
  return brought_[fetch.patch.caller] % kFetchAlignment == 0;
}

size_t CallerBuffers::bytes_of(const ShapeInstance& instance, size_t caller) const {
  return static_cast<size_t>(instance.sizes[layout_.callers[caller].slot]);
}

size_t CallerBuffers::bytes_of(const ShapeInstance& instance, const ArgumentLayout::Fetch& fetch) {
  return static_cast<size_t>(instance.launches[fetch.launch].fetched_bytes[fetch.number]);
}

}  // namespace tenon::kernels
