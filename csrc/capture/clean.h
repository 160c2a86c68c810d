// Names in captured graphs without the module that stood around the callable.
#pragma once

#include "py/object.h"

namespace fxpress::capture {

// capture::without_export_root for a str; the same object where nothing changes. AttributeError for
// anything else, as from a method that only a str has.
Ref clean_name(PyObject* name);

// Cleans the nn_module_stack and the source_fn_stack of all nodes: new containers without an entry
// for the module itself, and with `drop_self` without entries whose path is the module's own.
void clean_stacks(PyObject* graph, bool drop_self);

}  // namespace fxpress::capture
