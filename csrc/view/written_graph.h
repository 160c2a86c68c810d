// A graph of Model Explorer while its nodes are made: dicts and lists, as it reads them from JSON.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "core/string_pool.h"
#include "py/object.h"
#include "view/charge.h"

namespace fxpress::view {

// A value that a node takes, and the name of the argument.
struct Given {
  core::StringId value;
  core::StringId argument;
};

class WrittenGraph {
 public:
  explicit WrittenGraph(Charge& charge) : charge_(charge), nodes_(Ref::steal(PyList_New(0))) {}

  // The number of a name in UTF-8, of a value or an argument, and its str, borrowed.
  core::StringId id_of(std::string_view name);
  PyObject* text_of(core::StringId name);

  // Adds a node without results and returns its dict. It may share its attributes with
  // others, but not the list of them. ValueError when a value is given that no node computes.
  Ref add(PyObject* id, PyObject* label, PyObject* layer, Ref attributes,
          std::span<const Given> given);
  // Adds a value to the results of the newest node. `known` is a tuple that begins with a list of
  // attributes. IndexError when there is no node.
  void add_result(core::StringId value, PyObject* known);
  // What is known of a value that was computed, borrowed, or null.
  PyObject* known_of(core::StringId value) const { return values_[value.value()].known.get(); }
  // Adds to each node which nodes take its values.
  void add_users();

  PyObject* nodes() const { return nodes_.get(); }
  // "0", "1" and so on; borrowed.
  PyObject* number(size_t value);

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  struct Value {
    Ref text;               // its name; null: nobody has asked for it
    uint32_t node = kNone;  // that computes it
    uint32_t output = 0;    // of the node
    Ref known;              // null: it was not computed yet
  };
  struct Node {
    Ref id;
    Ref attributes;  // lists
    Ref outputs;
    Ref users;  // null: there are none
  };
  PyObject* argument(size_t place, core::StringId name);

  Charge& charge_;
  core::StringPool names_;     // of values and arguments
  std::vector<Value> values_;  // by name
  std::vector<Node> written_;  // in order
  std::vector<Ref> numbers_;   // see number()
  core::FlatMap argument_at_;  // place and name of an argument -> position in arguments_
  std::vector<Ref> arguments_;
  Ref nodes_;  // the list of all
};

// An item of a tuple, which is a list, borrowed; TypeError where there is none.
PyObject* list_in(PyObject* tuple, Py_ssize_t place);
// A dict with these items.
Ref new_dict(std::span<PyObject* const> keys_and_values);

}  // namespace fxpress::view
