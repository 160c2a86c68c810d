// A descriptor for attributes that are computed when somebody asks for them.
#pragma once

#include "fx/py.h"

namespace fxpress::fx {

// The type ComputedAttribute(name, compute). In a class it is a data descriptor: reading it from an
// instance gives what the instance's __dict__ holds under `name`, computed by compute(instance) and
// kept there the first time. Setting and deleting act on the __dict__. Written in C because Dynamo
// resolves data descriptors without a Python __get__ by an ordinary attribute access, where it
// would try to trace through a Python one.
Ref make_computed_attribute_type();

}  // namespace fxpress::fx
