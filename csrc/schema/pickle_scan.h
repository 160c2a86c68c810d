// Finds what a pickle would make without making it: how large a tree its result is, and whether it
// calls something that allocates by a number in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "core/budget.h"

namespace fxpress::schema {

// The bytes are no pickle that torch.load(weights_only=True) takes; what() says why.
class PickleError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct PickleFacts {
  uint64_t elements = 0;  // of the result as a tree: what is shared counts each time
  size_t depth = 0;       // of the result
  bool contains_itself = false;
};

// Objects are charged to the budget.
PickleFacts scan_pickle(std::string_view bytes, core::Budget& budget);

}  // namespace fxpress::schema
