// Sizes that partitions of one graph write into a GPU's memory, as the host knows them: a partition
// that reads such a tensor need not wait for the GPU to have it.
//
// A value's name is unique in its graph. One that a partition writes is written anew, at an address
// of its own, before anybody reads it there: what was noted last for both is what is read.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/device/stream.h"
#include "kernels/running/program.h"
#include "kernels/running/shape_instance.h"

namespace tenon::kernels {

class WrittenSizes {
 public:
  void note(std::string_view name, device::Address at, std::span<const int64_t> sizes);
  // False where nobody has written as many under that name there, or many others since.
  bool find(std::string_view name, device::Address at, std::span<int64_t> sizes) const;

 private:
  struct Place {
    device::Address at{};
    std::vector<int64_t> sizes;
  };
  static constexpr size_t kMostPlaces = 32;  // of Runs at the same time, and those before
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<Place>, std::less<>> places_;  // the last one noted at the end
};

// What a Run of `program` writes into its caller's memory; `slots` are where.
void note_sizes(WrittenSizes& written, const Program& program, const ShapeInstance& instance,
                std::span<const device::Address> slots);

// The elements of an input. Where nobody noted them the host waits for who makes them; UserError
// while a graph is captured, which cannot. `written`: null where a partition is alone.
void read_sizes(const WrittenSizes* written, const ProgramInput& input, device::Address from,
                device::Stream& stream, std::chrono::milliseconds deadline, std::span<int64_t> to);

}  // namespace tenon::kernels
