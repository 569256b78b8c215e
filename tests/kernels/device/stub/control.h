// What tests ask of the stub driver beside CUDA's own functions: faults to come, and what it found
// wrong. The library is found by TENON_DRIVER_LIBRARY; these are reached with dlsym.
//
// A script is a list of commands separated by ';' (also read from TENON_STUB_SCRIPT when loaded):
//   fail <function> <n>[+] <code>    the nth call (with '+': and all later) returns code
//   sticky <function> <n> <code>     from the nth call on the device answers everything with code
//   free_memory <bytes>              what is left on every device
//   devices <count>                  how many GPUs there are (1)
//   arch <major.minor> ...           their compute capabilities, the last for the rest (9.0)
//   driver_version <number>          12040 is CUDA 12.4 (13000)
//   hang_stream <n>                  the nth stream created never finishes
//   lazy                             work is done when someone waits for it, not before
//   order <seed>                     launches by PDL read at sampled moments, see below
//   drop <function>                  is not exported; only from TENON_STUB_SCRIPT
//
// Calls and streams are counted from the last script on.
//
// With `order`, what a launch with programmatic stream serialization reads before its wait is what
// lay there at a moment of the seed's choice, from when the first launch began that may still run,
// or NaN where that is written later; and what it writes by then must be nobody's who may. Without,
// each launch ends before the next.
//
// A launch is checked against the kernel's parameters, so its argument list must end with a null
// pointer, which CUDA does not ask for.
//
// TENON_STUB_STRICT=1: a process that ends with findings prints them and exits with 87, so that a
// program which knows nothing of the stub is held to them, too. A call after exit has begun or in
// the child of a fork ends the process with 86.
#pragma once

extern "C" {

// Null, or what is wrong with the script (valid until the next call of the thread).
const char* tenon_stub_script(const char* script);
// What was found wrong since the last reset, one finding a line: wrong arguments, use after free,
// accesses that nothing orders, calls that break a capture, launches after a loss, leaks.
const char* tenon_stub_reports();
// What is alive now: allocations, streams, events, modules, graphs, contexts; one a line.
const char* tenon_stub_leaks();
// Calls of one function since the last reset; of all where the name is empty.
long tenon_stub_calls(const char* function);
// Forgets faults, findings, counts, losses, hangs and limits of memory. What is alive stays alive,
// and the machine stays what it is.
void tenon_stub_reset();
}
