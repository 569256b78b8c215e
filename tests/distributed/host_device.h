// What engines need of a GPU, on host memory: everything is done when the call returns.
#pragma once

#include <memory>
#include <string>

#include "distributed/rank_device.h"

namespace tenon::distributed {

std::shared_ptr<RankDevice> host_device(int compute_major = 9,
                                        const std::string& place = "0000:01:00.0");

}  // namespace tenon::distributed
