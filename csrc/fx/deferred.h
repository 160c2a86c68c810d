// The descriptor that stands for generated code until the code is asked for.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// The type DeferredAttribute(name). In a class it is a data descriptor: reading it (from the
// instance or the class), setting or deleting it calls symbols.materialize(owner), which replaces
// the descriptor by the real thing, and then repeats the access. It is written in C because Dynamo
// resolves data descriptors without a Python __get__ by an ordinary attribute access, where it
// would try to trace through a Python one.
Ref make_deferred_attribute_type();

}  // namespace fxpress::fx
