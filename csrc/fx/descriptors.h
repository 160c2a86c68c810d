// Defines data descriptors of attributes that are created on first access. They are native because
// Dynamo reads the attribute of a native data descriptor, but would trace through a Python __get__.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// Creates the type ComputedAttribute(name, compute). Reading the attribute from an instance returns
// the value of `name` in the instance's __dict__; a missing value is computed by compute(instance)
// and stored there. A parameter, buffer or child that a module has registered under that name takes
// precedence over compute. Setting and deleting act on the __dict__.
Ref make_computed_attribute_type();

// Creates the type DeferredAttribute(name), for generated code. Each access from an instance or the
// class first calls symbols.materialize(owner), which replaces the descriptor by the generated
// attribute, and is then repeated.
Ref make_deferred_attribute_type();

// Whether a module of class `type` cannot register a value under `name` because the class has an
// attribute of that name. A ComputedAttribute does not prevent it.
bool is_taken_by_class(PyTypeObject* type, PyObject* name);

}  // namespace fxpress::fx
