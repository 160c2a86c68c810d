// Versions of dicts, by which a plan knows that nothing has changed in them. The GIL is held in all
// functions.
#pragma once

#include <cstdint>

#include "engine/symbols.h"

namespace fxpress::engine {

// Prepares the versions; called once.
void watch_dicts();

// The changes of dicts that have a version, counted; 0: Python does not tell. From Python 3.12 on
// this number is the version of all of them.
uint64_t dict_changes();

// The version of a dict; 0: it has none, and nothing may be remembered of it. Two dicts may have
// the same: remember which one it was.
uint64_t dict_version(PyObject* dict);

// Whether a dict is as it was when it had the version. Where dict_changes() counts, the dict may
// have died since.
bool is_version(PyObject* dict, uint64_t version);

// Says that what was found in dicts is to be found again: an object has got another dict, which no
// dict tells.
void forget_dicts();

}  // namespace fxpress::engine
