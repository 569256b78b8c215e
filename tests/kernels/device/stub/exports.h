// Every function of the driver's table is exported under CUDA's own name.
#pragma once

#define TENON_STUB_EXPORT extern "C" __attribute__((visibility("default")))
