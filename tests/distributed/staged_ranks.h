// A communicator of GPUs for callers with host memory: each call copies there and back.
#pragma once

#include <memory>

#include "distributed/communicator.h"
#include "kernels/device/stream.h"

namespace tenon::distributed {

std::unique_ptr<Communicator> make_staged(std::unique_ptr<Communicator> ranks,
                                          std::shared_ptr<device::Device> device);

}  // namespace tenon::distributed
