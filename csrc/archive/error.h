// The error for a faulty archive; errors of the operating system are std::system_error.
#pragma once

#include <stdexcept>

namespace fxpress::archive {

// The message names the record, if it is one that is at fault.
class ArchiveError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace fxpress::archive
