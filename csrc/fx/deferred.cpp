#include "fx/deferred.h"

#include <Python.h>
#include <structmember.h>

#include "fx/symbols.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

// Each such type has functions of these names.
namespace deferred_attribute {

namespace {

struct DeferredAttribute {
  PyObject_HEAD PyObject* name;  // the attribute that this descriptor stands for; owned
};

DeferredAttribute* cast(PyObject* self) {
  return reinterpret_cast<DeferredAttribute*>(self);
}

// There is none without a name.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  if (PyArg_ParseTuple(args, "U", &name) == 0) return nullptr;
  name = PyUnicode_FromObject(name);  // a plain str, whose hash and comparison are its own
  if (name == nullptr) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    Py_DECREF(name);
    return nullptr;
  }
  cast(self)->name = name;
  return self;
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
  PyObject* value = value_in_dict(dict, cast(self)->name);
  Py_DECREF(dict);
  return value;
}

// Whether generating code has left the descriptor in place. So it is while the module is under
// construction and registration hooks look at it, in a copy of the class's namespace, and where
// somebody wants the name of a descriptor for a buffer: the attribute is not there (yet).
bool still_deferred(PyObject* self, PyObject* owner) {
  return _PyType_Lookup(as_type(owner), cast(self)->name) == self;
}

PyObject* descr_get(PyObject* self, PyObject* instance, PyObject* owner) {
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
                 cast(self)->name);
    return nullptr;
  }
  return PyObject_GetAttr(on_instance ? instance : owner, cast(self)->name);
}

int descr_set(PyObject* self, PyObject* instance, PyObject* value) {
  auto* owner = reinterpret_cast<PyObject*>(Py_TYPE(instance));
  if (!materialize(owner)) return -1;
  if (!still_deferred(self, owner))
    return PyObject_GenericSetAttr(instance, cast(self)->name, value);
  return set_in_dict(instance, cast(self)->name, value);
}

PyObject* repr(PyObject* self) {
  return PyUnicode_FromFormat("<deferred attribute %R>", cast(self)->name);
}

PyMemberDef members[] = {
    {"name", T_OBJECT_EX, offsetof(DeferredAttribute, name), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

constexpr char kDoc[] =
    "DeferredAttribute(name, /)\n--\n\n"
    "A data descriptor that calls `materialize` on the first access, and repeats the access.";

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_descr_get, reinterpret_cast<void*>(descr_get)},
    {Py_tp_descr_set, reinterpret_cast<void*>(descr_set)},
    {Py_tp_repr, reinterpret_cast<void*>(repr)},
    {Py_tp_members, members},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {0, nullptr},
};

PyType_Spec spec = {"fxpress._native.DeferredAttribute", sizeof(DeferredAttribute), 0,
                    Py_TPFLAGS_DEFAULT, slots};

}  // namespace

}  // namespace deferred_attribute

Ref make_deferred_attribute_type() {
  return Ref::steal(PyType_FromSpec(&deferred_attribute::spec));
}

}  // namespace fxpress::fx
