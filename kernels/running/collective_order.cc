#include "kernels/running/collective_order.h"

namespace tenon::kernels {

void CollectiveOrder::wait() {
  if (!is_under_way_) return;
  end_.synchronize();
  is_under_way_ = false;
}

void CollectiveOrder::before_launches() {
  const std::lock_guard lock(mutex_);
  wait();
}

void CollectiveOrder::before_graph(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  const bool is_same = stream_ == stream.handle() && (stream_kept_ != nullptr || streams_last_);
  if (!is_same) wait();
}

void CollectiveOrder::after_graph(device::Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.record(end_);
  is_under_way_ = true;
  if (stream_ == stream.handle() && stream_kept_ != nullptr) return;
  stream_ = stream.handle();
  stream_kept_ = device::Stream::keep_alive(stream_);
}

}  // namespace tenon::kernels
