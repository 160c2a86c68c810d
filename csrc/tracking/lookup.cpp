#include "tracking/lookup.h"

#include <string>

#include "py/instance_dict.h"
#include "tracking/module_path.h"

namespace fxpress::tracking {

namespace {

Ref tuple_of_names(PyObject* names) {
  if (!PyTuple_Check(names)) raise(PyExc_TypeError, "the names are no tuple: %R", names);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); ++i) {
    if (!PyUnicode_Check(PyTuple_GET_ITEM(names, i))) {
      raise(PyExc_TypeError, "a name is no str: %R", PyTuple_GET_ITEM(names, i));
    }
  }
  return Ref::borrow(names);
}

}  // namespace

Ref class_attribute(PyObject* type, PyObject* name) {
  if (!PyType_Check(type)) raise(PyExc_TypeError, "no class: %R", type);
  if (!PyUnicode_Check(name)) raise(PyExc_TypeError, "a name is no str: %R", name);
  return Ref::borrow(_PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), name));
}

bool has_empty_tables(PyObject* module, PyObject* names) {
  const Ref all = tuple_of_names(names);
  const Ref ns = instance_dict(module);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
    PyObject* name = PyTuple_GET_ITEM(all.get(), i);
    if (_PyType_Lookup(Py_TYPE(module), name) != nullptr) return false;
    PyObject* table = readable_table(ns.get(), name);
    if (table == nullptr || PyDict_GET_SIZE(table) != 0) return false;
  }
  return true;
}

bool has_plain_tables(PyObject* ns, PyObject* names) {
  const Ref all = tuple_of_names(names);
  if (!PyDict_Check(ns)) raise(PyExc_TypeError, "the namespace is no dict: %R", ns);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(all.get()); ++i) {
    if (dict_table(ns, PyTuple_GET_ITEM(all.get(), i)) == nullptr) return false;
  }
  return true;
}

Ref path_without_tables(PyObject* path) {
  if (!PyUnicode_Check(path)) raise(PyExc_TypeError, "a path is no str: %R", path);
  // Keys may hold halves of surrogate pairs, which plain UTF-8 has no bytes for.
  const Ref bytes = Ref::steal(PyUnicode_AsEncodedString(path, "utf-8", "surrogatepass"));
  const auto size = static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()));
  const std::string cleaned =
      tracking::without_tables(std::string_view(PyBytes_AS_STRING(bytes.get()), size));
  if (cleaned.size() == size) return Ref::borrow(path);
  return Ref::steal(PyUnicode_DecodeUTF8(cleaned.data(), static_cast<Py_ssize_t>(cleaned.size()),
                                         "surrogatepass"));
}

}  // namespace fxpress::tracking
