// Looks names up in a module without running any code of the module's class, and writes paths of
// modules as users do.
#pragma once

#include "py/object.h"

namespace fxpress::tracking {

// Finds the attribute of a class by its method resolution order; returns an empty Ref when there is
// none. TypeError if `type` is no class.
Ref class_attribute(PyObject* type, PyObject* name);

// Whether the module has, in its own namespace, each of these tables as a plain dict or
// OrderedDict without entries, and its class has nothing under these names that would hide them.
bool has_empty_tables(PyObject* module, PyObject* names);

// Whether all of these values of the namespace are plain dicts.
bool has_plain_tables(PyObject* ns, PyObject* names);

// The path with every `._modules['k']`, `._parameters['k']` and `._buffers['k']` written `.k`, in
// either kind of quotes. Keys that contain a quote or `]` stay as they are.
Ref path_without_tables(PyObject* path);

}  // namespace fxpress::tracking
