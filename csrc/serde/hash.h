// The hash of a program, for Python.
#pragma once

#include "py/object.h"
#include "schema/document.h"

namespace fxpress::serde {

// (digest of the program, digests of its nodes, one behind the other), of 32 bytes each.
// traits: {target: (aliased, written, random, effectful, changes_mode)}; values: {name: digest}.
// AssertionError for a program without a canonical form. The GIL is released meanwhile.
pybind11::tuple hash_document(const schema::Document& document, const pybind11::dict& traits,
                              const pybind11::dict& values);

}  // namespace fxpress::serde
