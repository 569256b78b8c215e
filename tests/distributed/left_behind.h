// What bounded_call_test.cc asks of the library that it loads.
#pragma once

#include <atomic>

// Of a call that goes on for as long as it is told.
enum class Call : int { kBegun = 1, kMayEnd, kEnded };
using CallWithin = bool(std::atomic<Call>* call, int milliseconds);
