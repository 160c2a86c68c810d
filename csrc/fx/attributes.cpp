#include "fx/attributes.h"

#include "fx/symbols.h"

namespace fxpress::fx {

namespace {

// The parts of a dotted name, one Python string each.
Ref split_path(PyObject* qualified_name) {
  const Ref dot = Ref::steal(PyUnicode_FromString("."));
  return Ref::steal(PyUnicode_Split(qualified_name, dot.get(), -1));
}

// The dict that nn.Module keeps under `role`, or null: borrowed from the module.
PyObject* registry(PyObject* module_dict, PyObject* role) {
  PyObject* dict = dict_get(module_dict, role);
  return dict != nullptr && PyDict_CheckExact(dict) ? dict : nullptr;
}

bool has_global_registration_hooks() {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(symbols.module_registration_hooks); ++i) {
    if (PyObject_IsTrue(PyTuple_GET_ITEM(symbols.module_registration_hooks, i)) != 0) return true;
  }
  return false;
}

// The registry that setattr(module, name, value) would write to when nothing special is going on:
// an exact Parameter or a module, under a name that is new to the module and its class. Null: let
// nn.Module.__setattr__ decide.
PyObject* plain_registry(PyObject* module, PyObject* module_dict, PyObject* name,
                         PyObject* value) {
  PyObject* role = nullptr;
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == symbols.parameter_type) {
    role = names.module_dict_parameters;
  } else if (is_module(value)) {
    role = names.module_dict_modules;
  } else {
    return nullptr;
  }
  if (PyUnicode_GET_LENGTH(name) == 0 || has_global_registration_hooks()) return nullptr;
  // Looking the name up on the type tells whether the class has an attribute of that name.
  if (_PyType_Lookup(Py_TYPE(module), name) != nullptr) return nullptr;
  if (dict_get(module_dict, name) != nullptr) return nullptr;
  for (PyObject* other : {names.module_dict_parameters, names.module_dict_buffers,
                          names.module_dict_modules}) {
    PyObject* taken = registry(module_dict, other);
    if (taken == nullptr || dict_get(taken, name) != nullptr) return nullptr;
  }
  return registry(module_dict, role);
}

bool is_tensor_but_no_parameter(PyObject* value) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == symbols.parameter_type) return false;
  const int tensor = PyObject_IsInstance(value, symbols.tensor_type);
  check(tensor);
  if (tensor == 0) return false;
  const int parameter = PyObject_IsInstance(value, symbols.parameter_type);
  check(parameter);
  return parameter == 0;
}

void set_member(PyObject* module, PyObject* name, PyObject* value) {
  const Ref dict = Ref::steal(PyObject_GenericGetDict(module, nullptr));
  if (PyObject* target = plain_registry(module, dict.get(), name, value)) {
    check(PyDict_SetItem(target, name, value));
  } else if (is_tensor_but_no_parameter(value)) {
    Ref::steal(PyObject_CallMethodObjArgs(module, names.register_buffer, name, value, nullptr));
  } else {
    check(PyObject_SetAttr(module, name, value));
  }
}

}  // namespace

bool is_module(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), as_type(symbols.module_type)) != 0;
}

Ref resolve_attribute(PyObject* module, PyObject* qualified_name) {
  if (!PyUnicode_Check(qualified_name)) {
    raise(PyExc_AssertionError, "Expected str target, got %R", Py_TYPE(qualified_name));
  }
  const Ref path = split_path(qualified_name);
  Ref value = Ref::borrow(module);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(path.get()); ++i) {
    value = find_attr(value.get(), PyList_GET_ITEM(path.get(), i));
    if (!value) raise(PyExc_AttributeError, "Node target %U not found!", qualified_name);
  }
  return value;
}

void assign_attribute(PyObject* value, PyObject* module, PyObject* qualified_name) {
  const Ref path = split_path(qualified_name);
  const Py_ssize_t last = PyList_GET_SIZE(path.get()) - 1;
  Ref owner = Ref::borrow(module);
  for (Py_ssize_t i = 0; i < last; ++i) {
    PyObject* name = PyList_GET_ITEM(path.get(), i);
    Ref child = find_attr(owner.get(), name);
    if (!child || child.get() == Py_None) {
      child = new_module(as_type(symbols.module_type));
      set_member(owner.get(), name, child.get());
    }
    owner = std::move(child);
  }
  PyObject* name = PyList_GET_ITEM(path.get(), last);
  if (is_module(owner.get())) {
    set_member(owner.get(), name, value);
  } else if (is_tensor_but_no_parameter(value)) {
    Ref::steal(
        PyObject_CallMethodObjArgs(owner.get(), names.register_buffer, name, value, nullptr));
  } else {
    check(PyObject_SetAttr(owner.get(), name, value));
  }
}

void fill_fresh(PyObject* target, PyObject* body) {
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(body, &position, &key, &value) != 0;) {
    PyTypeObject* type = Py_TYPE(value);
    const bool container = PyDict_Check(value) || PyList_Check(value) || PyAnySet_Check(value);
    Ref fresh = !container               ? Ref::borrow(value)
                : PyDict_CheckExact(value) ? Ref::steal(PyDict_New())
                : PyList_CheckExact(value)
                    ? Ref::steal(PyList_New(0))
                    : Ref::steal(PyObject_CallNoArgs(reinterpret_cast<PyObject*>(type)));
    check(PyDict_SetItem(target, key, fresh.get()));
  }
}

Ref new_module(PyTypeObject* type) {
  Ref module = Ref::steal(PyBaseObject_Type.tp_new(type, no_args, nullptr));
  // Whoever has replaced nn.Module.__init__ (Dynamo, deferred initialization) gets its call.
  const Ref init =
      Ref::steal(PyObject_GetAttrString(symbols.module_type, "__init__"));
  if (init.get() == symbols.module_init) {
    const Ref dict = Ref::steal(PyObject_GenericGetDict(module.get(), nullptr));
    fill_fresh(dict.get(), symbols.module_init_body);
  } else {
    Ref::steal(PyObject_CallOneArg(init.get(), module.get()));
  }
  return module;
}

}  // namespace fxpress::fx
