// Exported programs, and parts of them, from documents.
#pragma once

#include "fx/serde/check.h"
#include "fx/serde/decoder.h"

namespace fxpress::fx::serde {

// The parts of a program; see Decoder::program().
Ref decode_program(const Document& document, const DecodeContext& context);

// A fake tensor with the metadata that a document is.
Ref decode_tensor(const Document& document, const DecodeContext& context);

// True when torch's verifier has nothing to say against a program, and no two nodes take the same
// result of another. False: it may have. The root is the first of the check's graph modules.
bool is_surely_valid(const ProgramCheck& check);

}  // namespace fxpress::fx::serde
