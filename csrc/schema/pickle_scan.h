// Measures the result of a pickle without running the pickle. Rejects pickles in which a number
// decides how much memory a function allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "core/budget.h"

namespace fxpress::schema {

// Thrown for a damaged or forbidden pickle. what() is the reason, such as "it ends too early".
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PickleFacts {
  uint64_t elements = 0;  // values in the result; a shared value counts at each occurrence
  size_t depth = 0;       // nesting of containers in the result
  bool contains_itself = false;
};

// Throws PickleError. Objects of the result are charged to `budget`.
PickleFacts scan_pickle(std::string_view bytes, core::Budget& budget);

}  // namespace fxpress::schema
