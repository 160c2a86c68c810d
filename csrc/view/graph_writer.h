// Makes the nodes of a graph for Model Explorer from the JSON text of a program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "py/object.h"
#include "view/charge.h"
#include "view/json_value.h"
#include "view/once.h"
#include "view/written_graph.h"

namespace fxpress::view {

// What is common is read here. Functions of Python describe what a node may have in common with
// others, each once of equal texts:
//
//   target(value)          -> (label, attribute)
//   argument(name, value)  -> (list of attributes, list of the values in it)
//   results(value)         -> list of values
//   kind(text)             -> list of attributes that name the kind of an input
//   persistent(value)      -> likewise for whether a buffer is persistent
//   tensor(value)          -> what is known of a tensor: a tuple that begins with a list of
//   attributes
//
// `no_tensor` is such a tuple for what is no tensor. And for each field of a node's metadata that
// is shown, a function that gives a list of attributes of it, in their order.
class GraphWriter {
 public:
  // charge(bytes) raises where memory is short. TypeError and KeyError: the graph is damaged.
  GraphWriter(JsonValue graph, const pybind11::dict& functions, const pybind11::dict& metadata,
              const pybind11::object& charge);
  GraphWriter(const GraphWriter&) = delete;
  GraphWriter& operator=(const GraphWriter&) = delete;

  // The stacks of modules in which the nodes were traced -> how many nodes.
  Ref stacks();
  // Writes the inputs of the text. `specs` are those of the signature, a list; None for a body.
  // `state` has the field with the name in the state for kinds of inputs that are in it, and
  // layer(path, known) gives the layer of what belongs to the module at a path.
  void write_inputs(const std::optional<JsonValue>& specs, const pybind11::dict& state,
                    const pybind11::object& layer);
  // See WrittenGraph; `given` has pairs of a value and the name of an argument.
  Ref add(const pybind11::str& id, const pybind11::str& label, const pybind11::str& layer,
          const pybind11::list& attributes, const pybind11::list& given);
  // Writes the nodes of the text. layer(stack) gives the layer of a stack. bodies(number, name,
  // [(argument, number in it, graph)]) writes the graphs that a node is given, and returns a list
  // of their ids.
  void write(const pybind11::object& layer, const pybind11::object& bodies);
  // Adds to each node which nodes take its values.
  void add_users() { written_.add_users(); }

  // The nodes that were made; the number of the node of the text that is at work.
  PyObject* nodes() const { return written_.nodes(); }
  size_t number() const { return number_; }

 private:
  struct Stack {
    Ref text;
    Ref layer;  // null: nobody has asked for it
  };
  struct Body {
    core::StringId argument;
    size_t number;   // in the argument
    uint32_t graph;  // a value of the text
  };
  const schema::JsonIndex& index() const { return graph_.index(); }
  uint32_t field(uint32_t object, std::string_view key) const {
    return field_of(index(), object, key);
  }
  std::string_view text(uint32_t value);
  Ref load(uint32_t value);
  Ref load_without(uint32_t value, const std::vector<uint32_t>& graphs);
  // What is known of a value, borrowed: by the text's description, which counts once, or else of
  // the value of this name that was computed before.
  PyObject* known_of(core::StringId value);
  PyObject* layer_of(uint32_t metadata, PyObject* ask);
  void find_stacks();

  void write_input(uint32_t given, uint32_t spec, const pybind11::dict& state, PyObject* layer);
  core::StringId first_value(uint32_t given);
  bool is_false(uint32_t value);
  void take_kind(const std::string& kind);
  Ref name_in_state(uint32_t spec, const pybind11::dict& state);
  void take_own_name(core::StringId name);
  Ref taken_attributes() const;

  void write_node(uint32_t node, PyObject* layer, PyObject* bodies);
  core::StringId name_of(uint32_t node);
  void read_argument(uint32_t argument, size_t position);
  core::StringId tensor_in(uint32_t held);
  std::vector<uint32_t> bodies_in(uint32_t held) const;
  void describe_argument(uint32_t argument, core::StringId name, uint32_t held);
  void take_attributes(PyObject* list);
  void take_values(PyObject* list, core::StringId argument);
  void write_bodies(PyObject* node, PyObject* name, PyObject* write);
  void write_results(uint32_t outputs);

  JsonValue graph_;
  Charge charge_;
  WrittenGraph written_;
  Once persistent_;
  Once targets_;
  Once tensors_;
  Ref kind_;                                             // see above
  Ref argument_;                                         // likewise
  Ref results_;                                          // likewise
  Ref no_tensor_;                                        // likewise
  std::unordered_map<std::string, Ref> kinds_;           // what kind_() said
  std::vector<std::pair<std::string, Once>> metadata_;   // by field
  std::unordered_map<std::string_view, Ref> arguments_;  // text -> what argument_() said
  std::vector<uint32_t> metas_;                          // by name: the description of a tensor
  std::vector<uint32_t> stack_of_;                       // by node: position in stacks_
  std::vector<Stack> stacks_;                            // each once
  size_t number_ = 0;                                    // see number()
  std::string unescaped_;                                // see text()

  // Of the node at work.
  std::vector<Ref> attributes_;
  std::vector<Given> given_;
  std::vector<Body> bodies_;
};

}  // namespace fxpress::view
