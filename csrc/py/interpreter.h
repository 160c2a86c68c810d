// Defines functions that depend on the version of CPython. No other file in csrc tests
// PY_VERSION_HEX.
#pragma once

#include <Python.h>
#include <unistd.h>

#include <cstdint>

namespace fxpress::cpython {

// Blocks the thread forever if the interpreter is finalizing, because Python must not be used then.
inline void wait_if_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  const bool is_finalizing = Py_IsFinalizing() != 0;
#else
  const bool is_finalizing = _Py_IsFinalizing() != 0;
#endif
  while (is_finalizing || Py_IsInitialized() == 0) pause();
}

// Acquires the GIL. Also works in a thread that Python did not create.
class AcquiredGil {
 public:
  AcquiredGil() = default;
  ~AcquiredGil() { PyGILState_Release(state_); }
  AcquiredGil(const AcquiredGil&) = delete;
  AcquiredGil& operator=(const AcquiredGil&) = delete;

 private:
  static PyGILState_STATE ensure() {
    wait_if_finalizing();
    return PyGILState_Ensure();
  }
  PyGILState_STATE state_ = ensure();
};

// Sets `result` to an attribute, and returns 1. If the object lacks the attribute, sets null and
// returns 0 without an error. Returns -1 with any other error.
inline int optional_attr(PyObject* object, PyObject* name, PyObject** result) {
#if PY_VERSION_HEX >= 0x030D0000
  return PyObject_GetOptionalAttr(object, name, result);
#else
  return _PyObject_LookupAttr(object, name, result);
#endif
}

// Returns the __dict__ of an instance, or null without an error if there is none. The result is
// borrowed, so the instance must not change while the dict is used.
inline PyObject* borrowed_instance_dict(PyObject* instance) {
  PyObject** dict = _PyObject_GetDictPtr(instance);
  return dict == nullptr ? nullptr : *dict;
}

// Sets the __dict__ of a new object. Returns 0, or -1 with an error. PyObject_GenericSetDict is not
// sufficient in Python 3.13, because attribute access would still read the object's empty inline
// values instead of the dict.
inline int set_instance_dict(PyObject* object, PyObject* dict) {
#if PY_VERSION_HEX >= 0x030D0000
  if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_MANAGED_DICT)) {
    return _PyObject_SetManagedDict(object, dict);
  }
#endif
  return PyObject_GenericSetDict(object, dict, nullptr);
}

// Whether dicts have a version, ma_version_tag, which Python 3.12 deprecates. From 3.12 on, Python
// notifies a watcher of changes instead.
#if PY_VERSION_HEX < 0x030C0000
constexpr bool kDictsCount = true;

inline uint64_t own_dict_version(PyObject* dict) {
  return reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
}

inline int watch_changes(void (*)()) {
  return -1;
}

inline bool watch_dict(int, PyObject*) {
  return false;
}
#else
constexpr bool kDictsCount = false;

inline uint64_t own_dict_version(PyObject*) {
  return 0;
}

inline void (*dict_changes)() = nullptr;  // set by watch_changes()

// Registers a function that Python calls before a watched dict changes or is freed. Returns the
// watcher's number; -1 if Python does not have a free watcher. Must be called only once.
inline int watch_changes(void (*changes)()) {
  dict_changes = changes;
  const int watcher = PyDict_AddWatcher([](PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
    dict_changes();
    return 0;
  });
  if (watcher < 0) PyErr_Clear();
  return watcher;
}

// Starts to watch a dict. Returns false if Python cannot watch it, for example if it is a __dict__
// with values stored inline in the object, which Python 3.13 changes without a notification.
inline bool watch_dict(int watcher, PyObject* dict) {
  if (watcher < 0 || reinterpret_cast<PyDictObject*>(dict)->ma_values != nullptr) return false;
  if (PyDict_Watch(watcher, dict) == 0) return true;
  PyErr_Clear();
  return false;
}
#endif

// Returns a number that changes whenever the class or a base changes; 0 if the number is unknown.
inline unsigned int type_version(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030D0000
  return type->tp_version_tag;
#else
  return PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG) ? type->tp_version_tag : 0;
#endif
}

}  // namespace fxpress::cpython
