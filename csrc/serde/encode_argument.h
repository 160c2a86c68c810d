// Arguments of nodes, graphs and signatures.
#pragma once

#include "py/object.h"
#include "serde/encode_list.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class GraphEncoder;

class ArgumentEncoder {
 public:
  // graphs_within: writes the graphs that are arguments.
  ArgumentEncoder(Encoding& to, ValueEncoder& values, ListEncoder& lists,
                  GraphEncoder& graphs_within)
      : out_(to.out),
        sink_(to.out.sink()),
        names_(to.names),
        objects_(to.context.objects),
        values_(values),
        lists_(lists),
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

  SchemaWriter& out_;
  EventSink& sink_;
  NodeNames& names_;
  PyObject* objects_;  // see EncodeContext
  ValueEncoder& values_;
  ListEncoder& lists_;
  GraphEncoder& graphs_within_;
  size_t dicts_ = 0;  // that were written
};

}  // namespace fxpress::serde
