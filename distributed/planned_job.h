// A job without the other ranks: what one of them would compile can be looked at, and does not run.
#pragma once

#include <memory>

#include "distributed/job.h"

namespace tenon::distributed {

// Throws UserError where rank and size do not fit together.
std::shared_ptr<Job> planned_job(int rank, int size);

}  // namespace tenon::distributed
