// Reads and sets attributes of modules by dotted names.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::fx {

// Returns isinstance(object, torch.nn.Module).
bool is_module(PyObject* object);

// Creates an empty torch.nn.Module of class `type`. Does not call the __init__ of a subclass.
Ref new_module(PyTypeObject* type);

// These functions work like nn.Module.register_parameter and nn.Module.register_buffer.
void register_parameter(PyObject* module, PyObject* name, PyObject* value);
void register_buffer(PyObject* module, PyObject* name, PyObject* value, bool persistent);

// Copies the entries of `body` into `target`. Each container in `body` becomes a new, empty
// container in `target`. Other values are shared.
void fill_fresh(PyObject* target, PyObject* body);

// Resolves dotted paths from a root module. Caches the objects along the paths, so that common
// prefixes are looked up once. Other code must not replace these objects meanwhile.
class AttributePaths {
 public:
  explicit AttributePaths(PyObject* root) : root_(Ref::borrow(root)) {}

  // Returns the attribute at `path`. Raises AttributeError "Node target ... not found!".
  Ref resolve(PyObject* path);

  // Sets the attribute at `path` like torch.fx.graph_module._assign_attr: creates missing modules
  // along the path, and registers a tensor that is not a Parameter as a buffer.
  void assign(PyObject* path, PyObject* value);

  // Returns whether this root and `other_root` share a module along `path`.
  bool shares_owner(PyObject* other_root, PyObject* path);

 private:
  // Returns the object whose attribute is at `path` (for "a.b.c", the object at "a.b"), or null.
  // make: whether to create missing modules.
  PyObject* owner(std::string_view path, bool make);
  PyObject* child(PyObject* parent, std::string_view prefix, std::string_view name, bool make);
  PyObject* atom(std::string_view name);

  Ref root_;                     // the module at which paths start
  core::TextMap<Ref> prefixes_;  // from paths to modules
  core::TextMap<Ref> atoms_;     // from names in paths to Python strings
  std::string last_path_;        // the path of the last call, without its last name
  PyObject* last_ = nullptr;     // object at last_path_, owned by prefixes_
};

}  // namespace fxpress::fx
