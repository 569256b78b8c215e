// Weights that the plans of a range have in common: equal ones go to the device once.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/running/program.h"

namespace tenon::kernels {

// Names each weight that a device packs by its bytes' place, the kernels that pack it and how many
// are equal before it, and small ones by their bytes, so that a WeightPool finds them for the next
// plan of the same graph.
void name_shared_weights(Program& program);

// On the device, where equal names are one weight.
size_t weight_bytes_together(const std::vector<const Program*>& programs);

}  // namespace tenon::kernels
