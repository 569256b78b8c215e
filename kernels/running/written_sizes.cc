#include "kernels/running/written_sizes.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "kernels/running/instances.h"

namespace tenon::kernels {

void WrittenSizes::note(std::string_view name, device::Address at, std::span<const int64_t> sizes) {
  const std::lock_guard lock(mutex_);
  auto known = places_.find(name);
  if (known == places_.end()) known = places_.try_emplace(std::string(name)).first;
  std::vector<Place>& places = known->second;
  auto place = std::ranges::find(places, at, &Place::at);
  if (place == places.end()) {
    const bool is_full = places.size() == kMostPlaces;
    if (!is_full) places.emplace_back();
    place = is_full ? places.begin() : places.end() - 1;  // the oldest, or a new one
  }
  place->at = at;
  place->sizes.assign(sizes.begin(), sizes.end());
  std::rotate(place, place + 1, places.end());
}

bool WrittenSizes::find(std::string_view name, device::Address at, std::span<int64_t> sizes) const {
  const std::lock_guard lock(mutex_);
  const auto known = places_.find(name);
  if (known == places_.end()) return false;
  const auto place = std::ranges::find(known->second, at, &Place::at);
  if (place == known->second.end() || place->sizes.size() != sizes.size()) return false;
  std::ranges::copy(place->sizes, sizes.begin());
  return true;
}

void note_sizes(WrittenSizes& written, const Program& program, const ShapeInstance& instance,
                std::span<const device::Address> slots) {
  for (size_t i = 0; i < program.shape_writes.size(); ++i) {
    const size_t slot = program.shape_writes[i].slot;
    if (!program.slots[slot].is_callers()) continue;
    written.note(program.slots[slot].name, slots[slot], instance.shape_writes[i]);
  }
}

void read_sizes(const WrittenSizes* written, const ProgramInput& input, device::Address from,
                device::Stream& stream, std::chrono::milliseconds deadline, std::span<int64_t> to) {
  if (written != nullptr && written->find(input.name, from, to)) return;
  if (stream.capturing()) {
    throw UserError(fmt::format(
        "input '{}' of a partition holds sizes that another provider makes, and a CUDA graph "
        "cannot wait for them: leave the capture out (cuda_graph_scope=session)",
        input.name));
  }
  const device::CurrentHere current(stream.device());
  std::vector<std::byte> bytes(storage_bytes(input.dtype, static_cast<int64_t>(to.size())));
  stream.copy(reinterpret_cast<device::Address>(bytes.data()), from, bytes.size());
  stream.synchronize(deadline);
  load_elements(input.dtype, bytes.data(), to);
}

}  // namespace tenon::kernels
