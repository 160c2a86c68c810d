// Attributes of modules under dotted names.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::fx {

// isinstance(object, torch.nn.Module)
bool is_module(PyObject* object);

// An empty torch.nn.Module of class `type`; an __init__ of the subclass is not called.
Ref new_module(PyTypeObject* type);

// nn.Module.register_parameter and register_buffer.
void register_parameter(PyObject* module, PyObject* name, PyObject* value);
void register_buffer(PyObject* module, PyObject* name, PyObject* value, bool persistent);

// Copies the entries of `body` into `target`: new empty containers for containers; shares the rest.
void fill_fresh(PyObject* target, PyObject* body);

// Resolves dotted paths from one root and caches the objects on the way, so that the ten thousand
// parameters of a model do not look up their common prefixes each time. Other code must not replace
// attributes below the root during its use.
class AttributePaths {
 public:
  explicit AttributePaths(PyObject* root) : root_(Ref::borrow(root)) {}

  // The attribute at the path; AttributeError "Node target ... not found!".
  Ref resolve(PyObject* path);

  // Sets the attribute at the path like torch.fx.graph_module._assign_attr: creates missing modules
  // on the way, and registers a tensor that is not a Parameter as a buffer.
  void assign(PyObject* path, PyObject* value);

  // Whether an object on the way to `path` is shared with another root: everything below it is
  // shared too.
  bool shares_owner(PyObject* other_root, PyObject* path);

 private:
  // The object that owns the last part of `path`; `make`: creates missing modules. Null when there
  // is none.
  PyObject* owner(std::string_view path, bool make);
  PyObject* child(PyObject* parent, std::string_view prefix, std::string_view name, bool make);
  PyObject* atom(std::string_view name);

  Ref root_;                     // where paths start
  core::TextMap<Ref> prefixes_;  // path -> object, for inner parts
  core::TextMap<Ref> atoms_;     // part of a path -> Python string
  std::string last_path_;        // prefix of the last call: successive paths often share it
  PyObject* last_ = nullptr;     // its object, held by prefixes_
};

}  // namespace fxpress::fx
