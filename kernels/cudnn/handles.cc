#include "kernels/cudnn/handles.h"

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cudnn/descriptor.h"

namespace tenon::cudnn {
namespace {

struct Idle {
  std::mutex mutex;
  std::map<std::pair<std::string, int>, std::vector<Handle>> handles;  // by library and GPU
};

Idle& idle() {
  static Idle& all = *new Idle;
  return all;
}

}  // namespace

HandleLease::HandleLease(const Functions& functions, int ordinal)
    : functions_(functions), ordinal_(ordinal) {
  {
    const std::lock_guard lock(idle().mutex);
    std::vector<Handle>& handles = idle().handles[{functions.path, ordinal}];
    if (!handles.empty()) {
      handle_ = handles.back();
      handles.pop_back();
      return;
    }
  }
  check(functions, functions.create_handle(&handle_), "cudnnCreate");
}

HandleLease::~HandleLease() {
  const std::lock_guard lock(idle().mutex);
  idle().handles[{functions_.path, ordinal_}].push_back(handle_);
}

}  // namespace tenon::cudnn
