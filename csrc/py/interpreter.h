// What depends on the release of CPython; each variant side by side. Nothing else in csrc asks for
// PY_VERSION_HEX.
#pragma once

#include <Python.h>

#include <cstdint>

namespace fxpress::cpython {

// Gets an attribute: 1, 0 with null and no error when there is none, -1 with an error.
inline int optional_attr(PyObject* object, PyObject* name, PyObject** result) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyObject_GetOptionalAttr(object, name, result);
#else
  return _PyObject_LookupAttr(object, name, result);
#endif
}

// Returns the __dict__ of an instance, borrowed: the instance must stay as it is meanwhile. Returns
// null without an error when there is none.
inline PyObject* borrowed_instance_dict(PyObject* instance) {
#if PY_VERSION_HEX < 0x030C0000
  PyObject** dict = _PyObject_GetDictPtr(instance);
  return dict == nullptr ? nullptr : *dict;
#else
  PyObject* dict = PyObject_GenericGetDict(instance, nullptr);
  if (dict == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(dict);  // the instance holds it
  return dict;
#endif
}

// Makes a dict the __dict__ of a new object: 0, or -1 with an error. In 3.13
// PyObject_GenericSetDict leaves the attributes inside the object in force, which are none: nothing
// of the dict is found.
inline int set_instance_dict(PyObject* object, PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    return _PyObject_SetManagedDict(object, dict);
  }
#endif
  return PyObject_GenericSetDict(object, dict, nullptr);
}

// Changes whenever the dict does, and is never the same for two dicts. 0 from 3.12 on: 3.12 says
// that the number is going to be dropped, and 3.13 no longer counts. Then nothing is remembered.
inline uint64_t dict_version(PyObject* dict) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
#else
  (void)dict;
  return 0;
#endif
}

// Changes whenever the class or one of its bases does; 0: unknown.
inline unsigned int type_version(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030D0000
  return type->tp_version_tag;
#else
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

}  // namespace fxpress::cpython
