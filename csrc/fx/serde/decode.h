// Exported programs, and parts of them, from documents.
#pragma once

#include "fx/serde/check.h"
#include "fx/serde/decoder.h"

namespace fxpress::fx::serde {

// True when torch's verifier has nothing to say against a program, and no two nodes take the same
// result of another. False: it may have. The root is the first of the check's graph modules.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::fx::serde
