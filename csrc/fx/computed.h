// A descriptor for attributes that are computed on demand.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// The type ComputedAttribute(name, compute). In a class it is a data descriptor: reading it from an
// instance gives what the instance's __dict__ holds under `name`, computed by compute(instance) and
// kept there the first time. What a module has registered under that name (a parameter, a buffer, a
// child) goes before what would be computed. Setting and deleting act on the __dict__. Written in C
// because Dynamo resolves data descriptors without a Python __get__ by an ordinary attribute
// access, where it would try to trace through a Python one.
Ref make_computed_attribute_type();

// Whether a module of that class cannot register something under `name`, because the class has an
// attribute of that name: another one than a ComputedAttribute, which gives way.
bool is_taken_by_class(PyTypeObject* type, PyObject* name);

}  // namespace fxpress::fx
