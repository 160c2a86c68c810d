// Defines FXPRESS_CHECK. A false condition is a bug in fxpress, and throws InternalError.
#pragma once

#include <stdexcept>
#include <string>

namespace fxpress::core {

class InternalError : public std::logic_error {
 public:
  InternalError(const char* file, int line, const std::string& what)
      : std::logic_error(std::string(file) + ":" + std::to_string(line) + ": " + what) {}
};

}  // namespace fxpress::core

#define FXPRESS_CHECK(condition, message)                                  \
  do {                                                                     \
    if (!(condition)) {                                                    \
      throw ::fxpress::core::InternalError(__FILE__, __LINE__, (message)); \
    }                                                                      \
  } while (false)
