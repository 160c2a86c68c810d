// Attributes of modules under dotted names.
#pragma once

#include "fx/py.h"

namespace fxpress::fx {

// The attribute of `module` at the dotted path; AttributeError "Node target ... not found!".
Ref resolve_attribute(PyObject* module, PyObject* qualified_name);

// Puts `value` at the dotted path below `module`, as torch.fx.graph_module._assign_attr does:
// missing modules on the way are made, a tensor that is no Parameter becomes a buffer.
void assign_attribute(PyObject* value, PyObject* module, PyObject* qualified_name);

// An empty torch.nn.Module of class `type`, whose own __init__ is not called.
Ref new_module(PyTypeObject* type);

// A copy of a dict in which empty containers are new ones and everything else is shared.
void fill_fresh(PyObject* target, PyObject* body);

// isinstance against torch.nn.Module.
bool is_module(PyObject* object);

}  // namespace fxpress::fx
