// The ranks that a session was asked to be one of.
#pragma once

#include <memory>

#include "distributed/job.h"
#include "provider/context_settings.h"
#include "provider/options.h"
#include "provider/target.h"

namespace tenon::provider {

// Waits for the others. Null: the session is alone. Throws UserError where it cannot be one of
// several.
std::shared_ptr<distributed::Job> join_job(const Options& options, const Target& target,
                                           const ContextSettings& context);

}  // namespace tenon::provider
