// Data descriptors of attributes that are made when they are read. They are written in C because
// Dynamo resolves data descriptors without a Python __get__ by an ordinary attribute access, where
// it would try to trace through a Python one.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// The type ComputedAttribute(name, compute). Reading it from an instance returns what the
// instance's __dict__ holds under `name`, computed by compute(instance) and kept there the first
// time. A parameter, buffer or child that a module has registered under that name takes
// precedence over compute. Setting and deleting act on the __dict__.
Ref make_computed_attribute_type();

// The type DeferredAttribute(name), for generated code. Reading it (from the instance or the
// class), setting or deleting it calls symbols.materialize(owner), which replaces the descriptor by
// the generated attribute, and then repeats the access.
Ref make_deferred_attribute_type();

// Whether a module of that class cannot register something under `name`, because the class has an
// attribute of that name: another one than a ComputedAttribute, which gives way.
bool is_taken_by_class(PyTypeObject* type, PyObject* name);

}  // namespace fxpress::fx
