// What a model's file says that the runtime's graph does not.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstdint>

#include "distributed/sharding/annotations.h"

namespace tenon::provider {

// How the file wants to be cut. A model that came from memory says nothing; a file that cannot be
// read says why.
distributed::Annotations annotations_of(const OrtGraph& graph, int64_t ranks);

}  // namespace tenon::provider
