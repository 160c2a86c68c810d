// Looks names up in a module without running code of the module's class. Shortens paths of modules
// to the form that users write.
#pragma once

#include "py/object.h"

namespace fxpress::tracking {

// Finds the attribute of a class by its method resolution order; returns an empty Ref if there is
// none. TypeError if `type` is not a class.
Ref class_attribute(PyObject* type, PyObject* name);

// Whether each name is the key of an empty plain dict or OrderedDict in the module's __dict__, and
// not the name of an attribute of the module's class.
bool has_empty_tables(PyObject* module, PyObject* names);

// Whether each name is the key of a plain dict in the namespace `ns`.
bool has_plain_tables(PyObject* ns, PyObject* names);

// Returns the path with each `._modules['k']`, `._parameters['k']` and `._buffers['k']`, in single
// or double quotes, replaced by `.k`. Keys that contain a quote or `]` are not replaced.
Ref path_without_tables(PyObject* path);

}  // namespace fxpress::tracking
