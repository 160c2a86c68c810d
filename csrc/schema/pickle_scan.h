// Determines the result of a pickle without running it: the size of its tree, and whether it calls
// a function that allocates by a number in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "core/budget.h"

namespace fxpress::schema {

// torch.load(weights_only=True) would not accept the bytes; what() gives the reason.
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PickleFacts {
  uint64_t elements = 0;  // of the result as a tree: shared values count each time
  size_t depth = 0;       // of the result
  bool contains_itself = false;
};

// Objects are charged to `budget`.
PickleFacts scan_pickle(std::string_view bytes, core::Budget& budget);

}  // namespace fxpress::schema
