#include "fx/descriptors.h"

#include <Python.h>
#include <structmember.h>

#include "fx/symbols.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

PyObject* computed_attribute_type = nullptr;  // never released

// An instance of ComputedAttribute or DeferredAttribute.
struct AttributeDescriptor {
  PyObject_HEAD PyObject* name;  // name of the attribute; owned
  PyObject* compute;             // function of an instance; owned; null in a DeferredAttribute
};

AttributeDescriptor* as_descriptor(PyObject* self) {
  return reinterpret_cast<AttributeDescriptor*>(self);
}

PyObject* name_of(PyObject* self) {
  return as_descriptor(self)->name;
}

PyObject* new_descriptor(PyTypeObject* type, PyObject* name, PyObject* compute) {
  name = PyUnicode_FromObject(name);  // an exact str, for which hash and == run no Python code
  if (name == nullptr) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    Py_DECREF(name);
    return nullptr;
  }
  Py_XINCREF(compute);
  as_descriptor(self)->name = name;
  as_descriptor(self)->compute = compute;
  return self;
}

PyObject* new_computed(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  PyObject* compute = nullptr;
  if (PyArg_ParseTuple(args, "UO", &name, &compute) == 0) return nullptr;
  return new_descriptor(type, name, compute);
}

PyObject* new_deferred(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  if (PyArg_ParseTuple(args, "U", &name) == 0) return nullptr;
  return new_descriptor(type, name, nullptr);
}

// Visits also the type, because instances of heap types own a reference to their type.
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(as_descriptor(self)->compute);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(as_descriptor(self)->compute);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(as_descriptor(self)->name);
  Py_XDECREF(as_descriptor(self)->compute);
  type->tp_free(self);
  Py_DECREF(type);
}

// Returns whether initialize_symbols() has run. Otherwise sets RuntimeError.
bool has_tables() {
  if (symbols.materialize != nullptr) return true;
  PyErr_SetString(PyExc_RuntimeError, "fxpress is not initialized: import fxpress.unflatten first");
  return false;
}

// ---- ComputedAttribute ----

// Finds `name` in the dicts of parameters, buffers and children in a module's __dict__. They may
// be of any subclass of dict. Returns a new reference, or null with or without an error.
PyObject* registered(PyObject* dict, PyObject* name) {
  for (PyObject* role :
       {names.module_dict_parameters, names.module_dict_buffers, names.module_dict_modules}) {
    PyObject* table = value_in_dict(dict, role);
    PyObject* value =
        table != nullptr && PyDict_Check(table) ? value_in_dict(table, name) : nullptr;
    Py_XDECREF(table);
    if (value != nullptr || PyErr_Occurred() != nullptr) return value;
  }
  return nullptr;
}

// Computes a value and stores it in `dict`. Returns a new reference, or null with an error.
PyObject* computed(PyObject* self, PyObject* dict, PyObject* instance) {
  if (as_descriptor(self)->compute == nullptr) {  // cleared by the garbage collector
    PyErr_SetObject(PyExc_AttributeError, name_of(self));
    return nullptr;
  }
  const auto compute = Ref::borrow(as_descriptor(self)->compute);
  PyObject* made = PyObject_CallOneArg(compute.get(), instance);
  if (made == nullptr) return nullptr;
  // If several threads compute the value at once, all of them return the value stored first.
  PyObject* value = PyDict_SetDefault(dict, name_of(self), made);
  Py_XINCREF(value);
  Py_DECREF(made);
  return value;
}

PyObject* get_computed(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) {
    Py_INCREF(self);
    return self;
  }
  if (!has_tables()) return nullptr;
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) return nullptr;
  PyObject* value = value_in_dict(dict, name_of(self));
  if (value == nullptr && PyErr_Occurred() == nullptr) value = registered(dict, name_of(self));
  if (value == nullptr && PyErr_Occurred() == nullptr) value = computed(self, dict, instance);
  Py_DECREF(dict);
  return value;
}

int set_computed(PyObject* self, PyObject* instance, PyObject* value) {
  return set_in_dict(instance, name_of(self), value);
}

// ---- DeferredAttribute ----

bool materialize(PyObject* owner) {
  if (!has_tables()) return false;
  PyObject* done = PyObject_CallOneArg(symbols.materialize, owner);
  Py_XDECREF(done);
  return done != nullptr;
}

// Returns the value in the instance's __dict__, if other code has stored one. Like any attribute of
// an instance, it has precedence over the class. Returns a new reference, or null with or without
// an error.
PyObject* own_value(PyObject* self, PyObject* instance) {
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  PyObject* value = value_in_dict(dict, name_of(self));
  Py_DECREF(dict);
  return value;
}

// Returns whether the class still has the descriptor after materialize(). If so, the attribute
// does not exist. This happens if a registration hook reads the attribute while the module is
// constructed, if the class is a copy, or if a buffer has the descriptor's name.
bool still_deferred(PyObject* self, PyObject* owner) {
  return _PyType_Lookup(as_type(owner), name_of(self)) == self;
}

PyObject* get_deferred(PyObject* self, PyObject* instance, PyObject* owner) {
  const bool on_instance = instance != nullptr && instance != Py_None;
  if (on_instance) {
    if (PyObject* value = own_value(self, instance)) return value;
    if (PyErr_Occurred() != nullptr) return nullptr;
    owner = reinterpret_cast<PyObject*>(Py_TYPE(instance));
  } else if (owner == nullptr || !PyType_Check(owner)) {
    PyErr_SetString(PyExc_TypeError, "__get__ needs an instance or a class");
    return nullptr;
  }
  if (!materialize(owner)) return nullptr;
  if (still_deferred(self, owner)) {
    PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%U'", as_type(owner)->tp_name,
                 name_of(self));
    return nullptr;
  }
  return PyObject_GetAttr(on_instance ? instance : owner, name_of(self));
}

int set_deferred(PyObject* self, PyObject* instance, PyObject* value) {
  auto* owner = reinterpret_cast<PyObject*>(Py_TYPE(instance));
  if (!materialize(owner)) return -1;
  if (!still_deferred(self, owner)) return PyObject_GenericSetAttr(instance, name_of(self), value);
  return set_in_dict(instance, name_of(self), value);
}

PyObject* repr(PyObject* self) {
  const char* const what = as_descriptor(self)->compute == nullptr ? "deferred" : "computed";
  return PyUnicode_FromFormat("<%s attribute %R>", what, name_of(self));
}

Ref make_type(const char* name, const char* doc, newfunc make, descrgetfunc get, descrsetfunc set) {
  static PyMemberDef members[] = {
      {"name", T_OBJECT_EX, offsetof(AttributeDescriptor, name), READONLY, nullptr},
      {nullptr, 0, 0, 0, nullptr},
  };
  PyType_Slot slots[] = {
      {Py_tp_doc, const_cast<char*>(doc)},
      {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
      {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
      {Py_tp_clear, reinterpret_cast<void*>(clear)},
      {Py_tp_descr_get, reinterpret_cast<void*>(get)},
      {Py_tp_descr_set, reinterpret_cast<void*>(set)},
      {Py_tp_repr, reinterpret_cast<void*>(repr)},
      {Py_tp_members, members},
      {Py_tp_new, reinterpret_cast<void*>(make)},
      {0, nullptr},
  };
  PyType_Spec spec = {name, sizeof(AttributeDescriptor), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                      slots};
  return Ref::steal(PyType_FromSpec(&spec));
}

}  // namespace

Ref make_computed_attribute_type() {
  Ref type = make_type(
      "fxpress._native.ComputedAttribute",
      "ComputedAttribute(name, compute, /)\n--\n\n"
      "A data descriptor of `instance.__dict__[name]`; `compute(instance)` makes a missing value.",
      new_computed, get_computed, set_computed);
  computed_attribute_type = Ref::borrow(type.get()).release();
  return type;
}

Ref make_deferred_attribute_type() {
  return make_type(
      "fxpress._native.DeferredAttribute",
      "DeferredAttribute(name, /)\n--\n\n"
      "A data descriptor that calls `materialize` on the first access, and repeats the access.",
      new_deferred, get_deferred, set_deferred);
}

bool is_taken_by_class(PyTypeObject* type, PyObject* name) {
  PyObject* attribute = _PyType_Lookup(type, name);
  return attribute != nullptr &&
         reinterpret_cast<PyObject*>(Py_TYPE(attribute)) != computed_attribute_type;
}

}  // namespace fxpress::fx
