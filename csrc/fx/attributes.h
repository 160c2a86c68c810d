// Reads and sets attributes of modules by dotted names.
#pragma once

#include <string>
#include <string_view>

#include "core/text_hash.h"
#include "py/object.h"

namespace fxpress::fx {

// Returns isinstance(object, torch.nn.Module).
bool is_module(PyObject* object);

// Creates an empty torch.nn.Module of class `type`, without calling an __init__ of a subclass.
Ref new_module(PyTypeObject* type);

// Like nn.Module.register_parameter and nn.Module.register_buffer.
void register_parameter(PyObject* module, PyObject* name, PyObject* value);
void register_buffer(PyObject* module, PyObject* name, PyObject* value, bool persistent);

// Copies the entries of `body` into `target`. New empty containers replace containers; other values
// are shared.
void fill_fresh(PyObject* target, PyObject* body);

// Resolves dotted paths from one root, whose attributes other code must not replace meanwhile.
// Caches the objects on the way, so that common prefixes of the paths are looked up once.
class AttributePaths {
 public:
  explicit AttributePaths(PyObject* root) : root_(Ref::borrow(root)) {}

  // Returns the attribute at the path. Raises AttributeError "Node target ... not found!".
  Ref resolve(PyObject* path);

  // Sets the attribute at the path like torch.fx.graph_module._assign_attr: creates missing modules
  // on the way, and registers a tensor that is not a Parameter as a buffer.
  void assign(PyObject* path, PyObject* value);

  // Whether a module on the way to `path` is the same below `other_root` as below this root.
  bool shares_owner(PyObject* other_root, PyObject* path);

 private:
  // Returns the object whose attribute is the last part of `path`, or null. `make`: creates missing
  // modules.
  PyObject* owner(std::string_view path, bool make);
  PyObject* child(PyObject* parent, std::string_view prefix, std::string_view name, bool make);
  PyObject* atom(std::string_view name);

  Ref root_;                     // where paths start
  core::TextMap<Ref> prefixes_;  // path of a module -> the module
  core::TextMap<Ref> atoms_;     // part of a path -> Python string
  std::string last_path_;        // prefix of the last call, which the next path often shares
  PyObject* last_ = nullptr;     // the object at last_path_, owned by prefixes_
};

}  // namespace fxpress::fx
