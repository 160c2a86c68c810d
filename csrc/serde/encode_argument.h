// Arguments of nodes, graphs and signatures.
#pragma once

#include "py/object.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::fx::serde {

class GraphEncoder;

class ArgumentEncoder {
 public:
  // graphs_within: writes the graphs that are arguments.
  ArgumentEncoder(Encoding& to, ValueEncoder& values, GraphEncoder& graphs_within)
      : out_(to.out),
        sink_(to.out.sink()),
        names_(to.names),
        objects_(to.context.objects),
        values_(values),
        graphs_within_(graphs_within) {}

  // type: of the operator's schema, for empty lists; or null.
  void argument(PyObject* value, PyObject* type);
  // A value by its name.
  void value_reference(Table table, PyObject* name);
  // An object that is an input of the graph. spec: has its class.
  void custom_object(PyObject* name, PyObject* spec);

 private:
  void node_argument(PyObject* node);
  void attribute(PyObject* node);
  void complex_number(PyObject* value);
  void dict(PyObject* dict);
  void other(PyObject* value);

  // Lists: each writes the list if its items are of these kinds, or returns false.
  void list(PyObject* list, PyObject* type);
  void empty_list(PyObject* type);
  bool plain_list(PyObject* items);
  bool number_list(PyObject* items);
  bool tensor_list(PyObject* items);
  bool nested_list(PyObject* items);
  bool numbers(Table table, PyObject* items);
  template <class F>
  bool write(Field field, PyObject* items, F&& each);
  void other_list(PyObject* items);
  void optional_tensor(PyObject* name);
  void tensor(PyObject* name);

  SchemaWriter& out_;
  EventSink& sink_;
  NodeNames& names_;
  PyObject* objects_;  // see EncodeContext
  ValueEncoder& values_;
  GraphEncoder& graphs_within_;
  size_t dicts_ = 0;  // that were written
};

}  // namespace fxpress::fx::serde
