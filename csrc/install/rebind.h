// Names of modules that stand for other objects from one moment to the next.
#pragma once

#include <unordered_map>

#include "py/object.h"

namespace fxpress::install {

// Borrowed objects: the one that a name holds, and the one that it will hold.
using Replacements = std::unordered_map<PyObject*, PyObject*>;

// Rebinds every name in the namespaces of sys.modules that holds one of the objects; our own
// modules keep theirs. No Python code runs meanwhile, so that nobody sees a part of it: no other
// thread, no signal handler, no forked child. The objects have to stay alive until it is done.
void rebind(const Replacements& replacements);

// Takes the keys out of a dict that are tuples with one of the parts in them, by identity.
void forget_keys(PyObject* dict, PyObject* parts);

}  // namespace fxpress::install
