// Read first: which nodes go to cuDNN, and the launches that they become.
#pragma once

#include <span>

#include "kernels/planning/candidate.h"

namespace tenon::kernels {

std::span<const Candidate> cudnn_convolution_candidates();  // Conv, com.microsoft::FusedConv
std::span<const Candidate> cudnn_pooling_candidates();      // MaxPool, AveragePool

}  // namespace tenon::kernels
