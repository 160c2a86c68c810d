#include <string_view>
#include <vector>

#include "install/installation.h"
#include "py/calls.h"

namespace fxpress::install {

namespace {

constexpr std::string_view kOurs = "fxpress";

bool is_ours(PyObject* name) {
  if (name == nullptr || !PyUnicode_Check(name)) return false;
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(name, &size);
  if (text == nullptr) {  // lone surrogates
    PyErr_Clear();
    return false;
  }
  const std::string_view view(text, static_cast<size_t>(size));
  return view.substr(0, kOurs.size()) == kOurs &&
         (view.size() == kOurs.size() || view[kOurs.size()] == '.');
}

// The namespace of a value of sys.modules; empty when it is no module, or one of ours.
Ref namespace_of(PyObject* key, PyObject* module) {
  // The type, not the class that an odd object says that it has.
  if (PyType_IsSubtype(Py_TYPE(module), &PyModule_Type) == 0) return {};
  // The module's own slot: a lazy module runs its loader when asked for __dict__ the usual way.
  PyObject* found = PyModule_GetDict(module);
  if (found == nullptr || !PyDict_CheckExact(found) || is_ours(key)) return {};
  Ref names = Ref::borrow(found);
  // __package__ too, for `python -m fxpress.cli`, whose module is called __main__.
  for (const char* role : {"__name__", "__package__"}) {
    if (is_ours(PyDict_GetItemString(found, role))) return {};
  }
  return names;
}

// A name and the value that it will hold; the references are our own.
struct Change {
  Ref names;
  Ref name;
  PyObject* value;
};

void find_changes(const Ref& names, const Replacements& replacements, std::vector<Change>& found) {
  for (const auto& [name, value] : DictRange(names.get())) {
    const auto replacement = replacements.find(value);
    // Nobody finds a name that is no plain string.
    if (replacement == replacements.end() || !PyUnicode_CheckExact(name)) continue;
    found.push_back({Ref::borrow(names.get()), Ref::borrow(name), replacement->second});
  }
}

bool have_one_in_common(PyObject* tuple, PyObject* parts) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(parts); ++j) {
      if (PyTuple_GET_ITEM(tuple, i) == PyTuple_GET_ITEM(parts, j)) return true;
    }
  }
  return false;
}

}  // namespace

void forget_keys(PyObject* dict, PyObject* parts) {
  const Ref keys = Ref::steal(PyDict_Keys(dict));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys.get()); ++i) {
    PyObject* key = PyList_GET_ITEM(keys.get(), i);
    if (!PyTuple_Check(key) || !have_one_in_common(key, parts)) continue;
    if (PyDict_DelItem(dict, key) != 0) PyErr_Clear();  // it is gone already
  }
}

void rebind(const Replacements& replacements) {
  if (replacements.empty()) return;
  std::vector<Change> changes;
  const Ref modules = Ref::steal(PyDict_Copy(PyImport_GetModuleDict()));
  for (const auto& [key, module] : DictRange(modules.get())) {
    if (const Ref names = namespace_of(key, module)) find_changes(names, replacements, changes);
  }
  // The values that go are alive elsewhere: nothing is freed.
  for (const Change& change : changes) {
    check(PyDict_SetItem(change.names.get(), change.name.get(), change.value));
  }
}

}  // namespace fxpress::install
