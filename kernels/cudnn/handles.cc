#include "kernels/cudnn/handles.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cudnn/descriptor.h"

namespace tenon::cudnn {
namespace {

// Of one library and GPU.
struct Pool {
  std::vector<Handle> idle;
  int made = 0;
};

struct Pools {
  std::mutex mutex;
  std::condition_variable returned;
  std::map<std::pair<std::string, int>, Pool> all;
};

Pools& pools() {
  static Pools& made = *new Pools;
  return made;
}

}  // namespace

HandleLease::HandleLease(const Functions& functions, int ordinal, OnNone on_none)
    : functions_(functions), ordinal_(ordinal) {
  std::unique_lock lock(pools().mutex);
  Pool& pool = pools().all[{functions.path, ordinal}];
  if (on_none == OnNone::kWait && pool.made > 0) {
    pools().returned.wait(lock, [&] { return !pool.idle.empty(); });
  }
  if (!pool.idle.empty()) {
    handle_ = pool.idle.back();
    pool.idle.pop_back();
    return;
  }
  lock.unlock();
  check(functions, functions.create_handle(&handle_), "cudnnCreate");
  lock.lock();
  ++pool.made;
}

Support runs_on(const Functions& functions, int ordinal) {
  static std::mutex& mutex = *new std::mutex;
  static auto& answers = *new std::map<std::pair<std::string, int>, Support>;
  const std::lock_guard lock(mutex);
  const auto [answer, is_new] = answers.try_emplace({functions.path, ordinal});
  if (!is_new) return answer->second;
  try {
    const HandleLease first(functions, ordinal, HandleLease::OnNone::kMake);
  } catch (const CallFailed& failed) {
    answer->second = Support::no(failed.what());
  }
  return answer->second;
}

HandleLease::~HandleLease() {
  {
    const std::lock_guard lock(pools().mutex);
    pools().all[{functions_.path, ordinal_}].idle.push_back(handle_);
  }
  pools().returned.notify_all();
}

}  // namespace tenon::cudnn
