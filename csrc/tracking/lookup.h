// What a module has under a name, found without running any code of the module's class.
#pragma once

#include "py/object.h"

namespace fxpress::tracking {

// What the class has under the name, by its method resolution order; an empty Ref where it has
// nothing. TypeError if `type` is no class.
Ref class_attribute(PyObject* type, PyObject* name);

// Whether the module has, in its own namespace, each of these tables as a plain dict or
// OrderedDict without entries, and its class has nothing under these names that would hide them.
bool has_empty_tables(PyObject* module, PyObject* names);

// Whether all of these values of the namespace are plain dicts.
bool has_plain_tables(PyObject* ns, PyObject* names);

// tracking::without_tables for a str.
Ref path_without_tables(PyObject* path);

}  // namespace fxpress::tracking
