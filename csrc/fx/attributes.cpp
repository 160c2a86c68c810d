#include "fx/attributes.h"

#include <algorithm>
#include <array>

#include "fx/descriptors.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/containers.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

namespace {

// The names of a module's three dicts, in the order in which nn.Module.__getattr__ searches them.
std::array<PyObject*, 3> table_names() {
  return {names.module_dict_parameters, names.module_dict_buffers, names.module_dict_modules};
}

// Returns an empty container of the type of `value`; an empty Ref unless it is a container.
Ref fresh_container(PyObject* value) {
  if (PyDict_CheckExact(value)) return Ref::steal(PyDict_New());
  if (PyODict_CheckExact(value)) return Ref::steal(PyODict_New());
  if (PyList_CheckExact(value)) return Ref::steal(PyList_New(0));
  if (!PyDict_Check(value) && !PyList_Check(value) && !PyAnySet_Check(value)) return {};
  return call(reinterpret_cast<PyObject*>(Py_TYPE(value)));
}

bool has_global_registration_hooks() {
  return std::ranges::any_of(items_of(symbols.module_registration_hooks), is_true);
}

// Returns the module's dict named `role` if setattr() would only add `name` to this dict, because
// the module and its class lack `name`, and no global registration hook is set. Else returns null.
PyObject* free_table(PyObject* module, PyObject* module_dict, PyObject* name, PyObject* role) {
  if (PyUnicode_GET_LENGTH(name) == 0 || has_global_registration_hooks()) return nullptr;
  if (is_taken_by_class(Py_TYPE(module), name)) return nullptr;
  if (dict_get(module_dict, name) != nullptr) return nullptr;
  const auto table = [&](PyObject* each) { return dict_table(module_dict, each); };
  return all_lack(table_names(), name, table) ? table(role) : nullptr;
}

// Returns the dict of the module to which setattr(module, name, value) would add `value`. Returns
// null if only nn.Module.__setattr__ can decide: `name` is in use, or `value` is neither a module
// nor exactly a Parameter.
PyObject* plain_table(PyObject* module, PyObject* module_dict, PyObject* name, PyObject* value) {
  const bool is_parameter = Py_IS_TYPE(value, as_type(symbols.parameter_type));
  if (!is_parameter && !is_module(value)) return nullptr;
  return free_table(module, module_dict, name,
                    is_parameter ? names.module_dict_parameters : names.module_dict_modules);
}

bool is_plain_tensor(PyObject* value) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == symbols.parameter_type) return false;
  return is_instance(value, symbols.tensor_type) && !is_instance(value, symbols.parameter_type);
}

void set_member(PyObject* owner, PyObject* name, PyObject* value) {
  Ref dict;
  if (is_module(owner)) dict = instance_dict(owner);
  PyObject* plain = dict ? plain_table(owner, dict.get(), name, value) : nullptr;
  if (plain != nullptr) {
    check(PyDict_SetItem(plain, name, value));
  } else if (is_plain_tensor(value)) {
    call_method(owner, names.register_buffer, name, value);
  } else {
    check(PyObject_SetAttr(owner, name, value));
  }
}

// Returns getattr(object, name), or an empty Ref if the attribute does not exist. Does not call
// nn.Module.__getattr__, which is Python code, for members of ordinary modules.
Ref find_member(PyObject* object, PyObject* name) {
  PyTypeObject* type = Py_TYPE(object);
  if (is_module(object) && _PyType_Lookup(type, name) == nullptr &&
      _PyType_Lookup(type, names.dunder_getattr) == symbols.module_getattr &&
      _PyType_Lookup(type, names.dunder_getattribute) == symbols.object_getattribute) {
    const Ref dict = instance_dict(object);
    if (PyObject* own = dict_get(dict.get(), name)) return Ref::borrow(own);
    const auto table = [&](PyObject* each) { return readable_table(dict.get(), each); };
    if (PyObject* member = find_in_tables(table_names(), name, table)) return Ref::borrow(member);
    if (all_lack(table_names(), name, table)) return Ref();
  }
  return find_attr(object, name);
}

}  // namespace

bool is_module(PyObject* object) {
  return is_a(object, symbols.module_type);
}

PyObject* AttributePaths::atom(std::string_view name) {
  Ref& string = atoms_[std::string(name)];
  if (!string) {
    PyObject* interned = new_string(name).release();
    PyUnicode_InternInPlace(&interned);
    string = Ref::steal(interned);
  }
  return string.get();
}

PyObject* AttributePaths::owner(std::string_view path, bool make) {
  const size_t dot = path.rfind('.');
  if (dot == std::string_view::npos) return root_.get();
  if (last_ != nullptr && path.substr(0, dot) == last_path_) return last_;
  // Finds the longest cached prefix of `path`, then looks up the remaining names one by one.
  size_t known = dot;
  PyObject* object = nullptr;
  for (;;) {
    const auto found = prefixes_.find(std::string(path.substr(0, known)));
    if (found != prefixes_.end()) {
      object = found->second.get();
      break;
    }
    const size_t shorter = path.substr(0, known).rfind('.');
    if (shorter == std::string_view::npos) {
      object = root_.get();
      known = std::string_view::npos;
      break;
    }
    known = shorter;
  }
  while (known != dot) {
    const size_t start = known == std::string_view::npos ? 0 : known + 1;
    const size_t end = path.find('.', start);
    object = child(object, path.substr(0, end), path.substr(start, end - start), make);
    if (object == nullptr) return nullptr;
    known = end;
  }
  last_path_ = path.substr(0, dot);
  last_ = object;
  return object;
}

PyObject* AttributePaths::child(PyObject* parent, std::string_view prefix, std::string_view name,
                                bool make) {
  Ref found = find_member(parent, atom(name));
  if (make && (!found || found.get() == Py_None)) {
    found = new_module(as_type(symbols.module_type));
    set_member(parent, atom(name), found.get());
  }
  if (!found) return nullptr;
  return prefixes_.emplace(prefix, std::move(found)).first->second.get();
}

Ref AttributePaths::resolve(PyObject* path) {
  if (!PyUnicode_Check(path)) {
    raise(PyExc_AssertionError, "Expected str target, got %R", Py_TYPE(path));
  }
  const std::string_view text = utf8(path);
  PyObject* object = owner(text, false);
  Ref value;
  if (object != nullptr) value = find_member(object, atom(text.substr(text.rfind('.') + 1)));
  if (!value) raise(PyExc_AttributeError, "Node target %U not found!", path);
  return value;
}

void AttributePaths::assign(PyObject* path, PyObject* value) {
  const std::string_view text = utf8(path);
  set_member(owner(text, true), atom(text.substr(text.rfind('.') + 1)), value);
}

bool AttributePaths::shares_owner(PyObject* other_root, PyObject* path) {
  const std::string_view text = utf8(path);
  Ref mine = Ref::borrow(root_.get());
  Ref other = Ref::borrow(other_root);
  size_t start = 0;
  for (size_t end = text.find('.'); end != std::string_view::npos; end = text.find('.', start)) {
    PyObject* name = atom(text.substr(start, end - start));
    mine = find_member(mine.get(), name);
    other = find_member(other.get(), name);
    if (!mine || !other) return false;
    if (mine.get() == other.get()) return true;
    start = end + 1;
  }
  return false;
}

void register_parameter(PyObject* module, PyObject* name, PyObject* value) {
  const Ref dict = instance_dict(module);
  PyObject* plain = nullptr;
  if (reinterpret_cast<PyObject*>(Py_TYPE(value)) == symbols.parameter_type) {
    plain = free_table(module, dict.get(), name, names.module_dict_parameters);
  }
  if (plain != nullptr) {
    check(PyDict_SetItem(plain, name, value));
  } else {
    call_method(module, names.register_parameter, name, value);
  }
}

void register_buffer(PyObject* module, PyObject* name, PyObject* value, bool persistent) {
  const Ref dict = instance_dict(module);
  Ref plain;
  const Ref transient = Ref::borrow(dict_get(dict.get(), names.non_persistent_buffers));
  if (is_instance(value, symbols.tensor_type) && transient && PySet_CheckExact(transient.get())) {
    plain = Ref::borrow(free_table(module, dict.get(), name, names.module_dict_buffers));
  }
  if (plain) {
    if (!persistent) check(PySet_Add(transient.get(), name));
    check(PyDict_SetItem(plain.get(), name, value));
  } else {
    call_method(module, names.register_buffer, name, value, persistent ? Py_True : Py_False);
  }
}

void fill_fresh(PyObject* target, PyObject* body) {
  for (const auto& [key, value] : DictRange(body)) {
    const Ref container = fresh_container(value);
    check(PyDict_SetItem(target, key, container ? container.get() : value));
  }
}

Ref new_module(PyTypeObject* type) {
  // Dynamo and deferred initialization replace nn.Module.__init__. Their replacement must run.
  if (_PyType_Lookup(as_type(symbols.module_type), names.dunder_init) != symbols.module_init) {
    const Ref init = get_attr(symbols.module_type, names.dunder_init);
    Ref module = Ref::steal(PyBaseObject_Type.tp_new(type, no_args, nullptr));
    call(init.get(), module);
    return module;
  }
  // Python does not store a copied dict inline in the module, so the engine can watch this dict.
  const Ref dict = Ref::steal(PyDict_Copy(symbols.module_init_body));
  fill_fresh(dict.get(), symbols.module_init_body);
  return new_instance(reinterpret_cast<PyObject*>(type), dict.get());
}

}  // namespace fxpress::fx
