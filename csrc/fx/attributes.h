// Attributes of modules under dotted names.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::fx {

// isinstance against torch.nn.Module.
bool is_module(PyObject* object);

// An empty torch.nn.Module of class `type`, whose own __init__ is not called.
Ref new_module(PyTypeObject* type);

// nn.Module.register_parameter and register_buffer.
void register_parameter(PyObject* module, PyObject* name, PyObject* value);
void register_buffer(PyObject* module, PyObject* name, PyObject* value, bool persistent);

// A copy of a dict in which empty containers are new ones and everything else is shared.
void fill_fresh(PyObject* target, PyObject* body);

// Walks dotted paths from one root and remembers the objects on the way, so that a model's ten
// thousand parameters do not look up their ten common prefixes again and again. Nobody else may
// replace attributes below the root meanwhile.
class AttributePaths {
 public:
  explicit AttributePaths(PyObject* root) : root_(Ref::borrow(root)) {}

  // The attribute at the path; AttributeError "Node target ... not found!".
  Ref resolve(PyObject* path);

  // Puts `value` at the path, as torch.fx.graph_module._assign_attr does: missing modules on the
  // way are made, a tensor that is no Parameter becomes a buffer.
  void assign(PyObject* path, PyObject* value);

  // Whether an object on the way to `path` is the one that another root has there: what is below it
  // is there already.
  bool shares_owner(PyObject* other_root, PyObject* path);

 private:
  // The object that owns the last part of `path`; `make` says whether missing modules are made.
  // Null when there is none.
  PyObject* owner(std::string_view path, bool make);
  PyObject* child(PyObject* parent, std::string_view prefix, std::string_view name, bool make);
  PyObject* atom(std::string_view name);

  Ref root_;                     // where paths start
  core::TextMap<Ref> prefixes_;  // path -> object, for inner parts
  core::TextMap<Ref> atoms_;     // part of a path -> Python string
  std::string last_path_;        // whose object was asked for last: paths come in groups
  PyObject* last_ = nullptr;     // that object, held by prefixes_
};

}  // namespace fxpress::fx
