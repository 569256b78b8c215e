#include "left_behind.h"

#include <chrono>
#include <thread>

#include "distributed/bounded_call.h"

extern "C" __attribute__((visibility("default"))) bool tenon_call_within(std::atomic<Call>* call,
                                                                         int milliseconds) {
  return tenon::distributed::call_within(std::chrono::milliseconds(milliseconds), [call] {
    if (*call != Call::kMayEnd) *call = Call::kBegun;
    while (*call != Call::kMayEnd) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    *call = Call::kEnded;
  });
}
