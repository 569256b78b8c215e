// The stub driver behind the plugin: faults to come, and what it found wrong.
#pragma once

#include <string>

namespace tenon::testing {

// Names the stub as the driver, with a script that holds from its loading on. Before env().
void use_stub_driver(const char* script);

// Commands of tests/kernels/device/stub/control.h.
void stub_script(const std::string& commands);
std::string stub_reports();
std::string stub_leaks();
long stub_calls(const std::string& function);
void stub_reset();
void* stub_function(const char* name);

}  // namespace tenon::testing
