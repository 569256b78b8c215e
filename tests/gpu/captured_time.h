// Microseconds of one launch of the captured sequence: the median of nine.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/device/stream.h"

namespace tenon::kernels {

template <typename RunAll>
double captured_microseconds(const std::shared_ptr<device::Device>& device, device::Stream& stream,
                             const RunAll& run_all) {
  stream.begin_capture();
  run_all();
  const device::Graph sequence(device, stream.end_capture());
  std::vector<float> times;
  for (int turn = 0; turn < 9; ++turn) {
    device::Event first(device, true), last(device, true);
    stream.record(first);
    stream.launch(sequence);
    stream.record(last);
    stream.synchronize();
    times.push_back(device::Event::milliseconds(first, last));
  }
  std::ranges::nth_element(times, times.begin() + 4);
  return times[4] * 1e3;
}

}  // namespace tenon::kernels
