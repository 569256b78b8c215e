// A thread of ours in somebody's process: their signals are not for it.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <thread>
#include <utility>

namespace tenon::distributed {

template <typename Work>
std::thread quiet_thread(Work work) {
  struct Blocked {
    sigset_t before;
    Blocked() {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
  };
  const Blocked blocked;  // the thread inherits it
  return std::thread(std::move(work));
}

}  // namespace tenon::distributed
