#include "distributed/bounded_call.h"

#include <future>
#include <thread>
#include <utility>

namespace tenon::distributed {

bool call_within(std::chrono::milliseconds bound, std::function<void()> work) noexcept try {
  std::packaged_task<void()> task(std::move(work));
  std::future<void> done = task.get_future();
  std::thread thread(std::move(task));
  const bool ended = done.wait_for(bound) == std::future_status::ready;
  ended ? thread.join() : thread.detach();
  return ended;
} catch (...) {
  return false;  // no thread to be had
}

}  // namespace tenon::distributed
