// Failures are exceptions inside Tenon and become an OrtStatus in provider/guard.h only.
#pragma once

#include <stdexcept>
#include <string>

namespace tenon {

// The model, an option or a file is at fault; the message says what to do about it.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message) {}
};

// Tenon is at fault.
class InternalError : public std::logic_error {
 public:
  explicit InternalError(const std::string& message) : std::logic_error(message) {}
};

}  // namespace tenon
