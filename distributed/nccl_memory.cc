#include "distributed/nccl_memory.h"

#include <fmt/format.h>

#include <utility>

namespace tenon::distributed {

NcclMemory::NcclMemory(std::shared_ptr<NcclCommunicatorHandle> handle, size_t bytes)
    : handle_(std::move(handle)), bytes_(bytes) {
  handle_->device().make_current();
  const NcclFunctions& functions = handle_->functions();
  const NcclResult result = functions.allocate(&data_, bytes_);
  if (result != kNcclSuccess) {
    throw CollectiveError(
        fmt::format("NCCL has no {} bytes: {}", bytes_, functions.words(result, nullptr)));
  }
}

NcclMemory::~NcclMemory() {
  if (!end_window()) return;
  try {
    handle_->device().make_current();
  } catch (const std::exception&) {
    return;  // a lost device has no memory to give back
  }
  handle_->functions().free(data_);
}

std::string NcclMemory::register_window(const std::function<std::string()>& interrupted) {
  return handle_->call(
      [&](NcclHandle handle) {
        // As with a split: what NCCL came to, the communicator tells later.
        const NcclResult put = handle_->functions().register_window(handle, data_, bytes_,
                                                                    window_.get(), kNcclSymmetric);
        return put == kNcclSuccess ? kNcclInProgress : put;
      },
      interrupted);
}

// Whether NCCL has done with the memory. With a communicator's end all its windows have gone.
bool NcclMemory::end_window() noexcept {
  if (!handle_->is_open()) return handle_->wait_for_end();
  if (!has_window()) return true;
  try {
    const std::string wrong = handle_->call(
        [&](NcclHandle handle) { return handle_->functions().deregister_window(handle, *window_); },
        [] { return "aborted"; });
    return wrong.empty() || (!handle_->is_open() && handle_->wait_for_end());
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace tenon::distributed
