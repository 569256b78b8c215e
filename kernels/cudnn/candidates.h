// Read first: which nodes go to cuDNN, and the launches that they become.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "kernels/cudnn/plan.h"
#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> cudnn_convolution_candidates();  // Conv, com.microsoft::FusedConv
std::span<const Candidate> cudnn_pooling_candidates();      // MaxPool, AveragePool

// Whether cuDNN may be called on the GPU of `settings`.
Support may_use_cudnn(const Settings& settings);
// A call as GraphCall::saved() wrote it, for that GPU. `sizes`: its numbers. Throws UserError where
// this cuDNN does not take it.
std::shared_ptr<const LibraryCall> saved_cudnn_call(std::string_view bytes,
                                                    std::span<const Dim> sizes,
                                                    const Settings& settings);

// Whether cuDNN may be called and takes the graph, for whoever makes other launches around a call.
// The same graph is asked about once.
Support ask_cudnn(const cudnn::Graph& graph, const Settings& settings, const cudnn::Rules& rules);

}  // namespace tenon::kernels
