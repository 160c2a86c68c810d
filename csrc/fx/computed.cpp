#include "fx/computed.h"

#include <Python.h>
#include <structmember.h>

#include "fx/symbols.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

// Each such type has functions of these names.
namespace computed_attribute {

namespace {

PyObject* the_type = nullptr;  // the type; owned, for good

struct ComputedAttribute {
  PyObject_HEAD PyObject* name;  // the attribute; owned
  PyObject* compute;             // (instance) -> value; owned
};

ComputedAttribute* cast(PyObject* self) {
  return reinterpret_cast<ComputedAttribute*>(self);
}

// There is none without both.
PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject* name = nullptr;
  PyObject* compute = nullptr;
  if (PyArg_ParseTuple(args, "UO", &name, &compute) == 0) return nullptr;
  name = PyUnicode_FromObject(name);  // a plain str, whose hash and comparison are its own
  if (name == nullptr) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (self == nullptr) {
    Py_DECREF(name);
    return nullptr;
  }
  Py_INCREF(compute);
  cast(self)->name = name;
  cast(self)->compute = compute;
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(cast(self)->compute);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(cast(self)->compute);
  return 0;
}

void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Py_XDECREF(cast(self)->name);
  Py_XDECREF(cast(self)->compute);
  type->tp_free(self);
  Py_DECREF(type);
}

// Returns the value that nn.Module's tables in an instance's __dict__ have under `name`, as
// value_in_dict() gives it. Tables may be of any subclass of dict.
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

// The value for the instance, which its __dict__ has from now on: a new reference, or null.
PyObject* computed(PyObject* self, PyObject* dict, PyObject* instance) {
  if (cast(self)->compute == nullptr) {  // the collector has taken it
    PyErr_SetObject(PyExc_AttributeError, cast(self)->name);
    return nullptr;
  }
  const auto compute = Ref::borrow(cast(self)->compute);
  PyObject* made = PyObject_CallOneArg(compute.get(), instance);
  if (made == nullptr) return nullptr;
  // Threads may compute at once: all get what the first has stored.
  PyObject* value = PyDict_SetDefault(dict, cast(self)->name, made);
  Py_XINCREF(value);
  Py_DECREF(made);
  return value;
}

PyObject* descr_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) {
    Py_INCREF(self);
    return self;
  }
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) return nullptr;
  PyObject* value = value_in_dict(dict, cast(self)->name);
  if (value == nullptr && PyErr_Occurred() == nullptr) value = registered(dict, cast(self)->name);
  if (value == nullptr && PyErr_Occurred() == nullptr) value = computed(self, dict, instance);
  Py_DECREF(dict);
  return value;
}

int descr_set(PyObject* self, PyObject* instance, PyObject* value) {
  return set_in_dict(instance, cast(self)->name, value);
}

PyMemberDef members[] = {
    {"name", T_OBJECT_EX, offsetof(ComputedAttribute, name), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

constexpr char kDoc[] =
    "ComputedAttribute(name, compute, /)\n--\n\n"
    "A data descriptor of `instance.__dict__[name]`; `compute(instance)` makes a missing value.";

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>(kDoc)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_descr_get, reinterpret_cast<void*>(descr_get)},
    {Py_tp_descr_set, reinterpret_cast<void*>(descr_set)},
    {Py_tp_members, members},
    {Py_tp_new, reinterpret_cast<void*>(make)},
    {0, nullptr},
};

PyType_Spec spec = {"fxpress._native.ComputedAttribute", sizeof(ComputedAttribute), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, slots};

}  // namespace

}  // namespace computed_attribute

Ref make_computed_attribute_type() {
  Ref type = Ref::steal(PyType_FromSpec(&computed_attribute::spec));
  computed_attribute::the_type = Ref::borrow(type.get()).release();
  return type;
}

bool is_taken_by_class(PyTypeObject* type, PyObject* name) {
  PyObject* attribute = _PyType_Lookup(type, name);
  return attribute != nullptr &&
         reinterpret_cast<PyObject*>(Py_TYPE(attribute)) != computed_attribute::the_type;
}

}  // namespace fxpress::fx
