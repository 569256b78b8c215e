// What the assembler made of asynchronous products: reads a listing of machine code (nvdisasm) and
// finds writes to registers that a product in flight still reads, and anything else that touches
// the sums of one. PTX leaves both undefined, and neither the assembler nor a run need tell.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tenon::codegen {

// One line for each hazard; empty: there is none.
std::vector<std::string> hazards_in(std::string_view listing);

// How many asynchronous products a listing has.
int products_in(std::string_view listing);

}  // namespace tenon::codegen
