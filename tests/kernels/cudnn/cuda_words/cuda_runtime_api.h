// The few words of CUDA that cudnn_graph.h uses, so that it can be read without CUDA's headers.
#pragma once

#include <stddef.h>

using cudaStream_t = struct CUstream_st*;
using cudaGraph_t = struct CUgraph_st*;
