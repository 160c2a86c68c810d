// Defines data descriptors of attributes that are created on first access. They are native, because
// Dynamo reads the attribute of a native descriptor, but would trace a Python __get__.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// Creates the type ComputedAttribute(name, compute). Reading the attribute returns the value of
// `name` in the instance's __dict__. If there is none, it returns the parameter, buffer or child
// that is registered as `name`. If that is missing too, it stores compute(instance) in the __dict__
// and returns it. Setting and deleting the attribute change the __dict__.
Ref make_computed_attribute_type();

// Creates the type DeferredAttribute(name), for generated code. Each access from an instance or the
// class calls symbols.materialize(owner), which replaces the descriptor by the generated attribute.
// Then the access is repeated.
Ref make_deferred_attribute_type();

// Returns whether a module of class `type` cannot register a value under `name`, because the class
// has this attribute. A ComputedAttribute does not count.
bool is_taken_by_class(PyTypeObject* type, PyObject* name);

}  // namespace fxpress::fx
