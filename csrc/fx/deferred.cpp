#include "fx/deferred.h"

#include <structmember.h>

#include "fx/symbols.h"

namespace fxpress::fx {

namespace {

struct DeferredAttribute {
  PyObject_HEAD PyObject* name;  // the attribute that this descriptor stands for; owned
};

DeferredAttribute* cast(PyObject* self) {
  return reinterpret_cast<DeferredAttribute*>(self);
}

int init(PyObject* self, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  if (PyArg_ParseTuple(args, "U", &name) == 0) return -1;
  Py_INCREF(name);
  Py_XSETREF(cast(self)->name, name);
  return 0;
}

// Instances of heap types own a reference to their type.
void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  Py_XDECREF(cast(self)->name);
  type->tp_free(self);
  Py_DECREF(type);
}

bool materialize(PyObject* owner) {
  PyObject* done = PyObject_CallOneArg(symbols.materialize, owner);
  Py_XDECREF(done);
  return done != nullptr;
}

// A value that somebody put into the instance's __dict__ by hand takes precedence, as it does over
// the function that this descriptor stands for. New reference, or null without an error.
PyObject* own_value(PyObject* self, PyObject* instance) {
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  PyObject* value = PyDict_GetItemWithError(dict, cast(self)->name);
  Py_XINCREF(value);
  Py_DECREF(dict);
  return value;
}

PyObject* descr_get(PyObject* self, PyObject* instance, PyObject* owner) {
  const bool on_instance = instance != nullptr && instance != Py_None;
  if (on_instance) {
    if (PyObject* value = own_value(self, instance)) return value;
    if (PyErr_Occurred() != nullptr) return nullptr;
    owner = reinterpret_cast<PyObject*>(Py_TYPE(instance));
  }
  if (!materialize(owner)) return nullptr;
  return PyObject_GetAttr(on_instance ? instance : owner, cast(self)->name);
}

int descr_set(PyObject* self, PyObject* instance, PyObject* value) {
  if (!materialize(reinterpret_cast<PyObject*>(Py_TYPE(instance)))) return -1;
  return PyObject_GenericSetAttr(instance, cast(self)->name, value);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<deferred attribute %R>", cast(self)->name);
}

PyMemberDef members[] = {
    {"name", T_OBJECT_EX, offsetof(DeferredAttribute, name), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_init, reinterpret_cast<void*>(init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_descr_get, reinterpret_cast<void*>(descr_get)},
    {Py_tp_descr_set, reinterpret_cast<void*>(descr_set)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_members, members},
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {0, nullptr},
};

PyType_Spec spec = {"fxpress._native.DeferredAttribute", sizeof(DeferredAttribute), 0,
                    Py_TPFLAGS_DEFAULT, slots};

}  // namespace

Ref make_deferred_attribute_type() {
  return Ref::steal(PyType_FromSpec(&spec));
}

}  // namespace fxpress::fx
