#include "kernels/running/collective_order.h"

namespace tenon::kernels {

void CollectiveOrder::wait() {
  if (!is_under_way_) return;
  end_.synchronize();
  is_under_way_ = false;
}

bool CollectiveOrder::is_last(const device::Stream& stream) const {
  return stream_ == stream.handle() && (stream_kept_ != nullptr || streams_last_);
}

void CollectiveOrder::before_launches(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (is_graph_) return wait();
  if (is_under_way_ && !is_last(stream)) stream.wait(end_);
}

void CollectiveOrder::before_graph(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  if (!is_last(stream)) wait();
}

void CollectiveOrder::note(device::Stream& stream, bool is_graph) {
  const std::lock_guard lock(mutex_);
  stream.record(end_);
  is_under_way_ = true;
  is_graph_ = is_graph;
  if (stream_ == stream.handle() && stream_kept_ != nullptr) return;
  stream_ = stream.handle();
  stream_kept_ = device::Stream::keep_alive(stream_);
}

}  // namespace tenon::kernels
