// The signature of a program's graph, and the calls of its modules.
#pragma once

#include "py/object.h"
#include "serde/encode_argument.h"
#include "serde/encode_values.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class SignatureEncoder {
 public:
  SignatureEncoder(Encoding& to, ArgumentEncoder& arguments, ValueEncoder& values)
      : out_(to.out),
        sink_(to.out.sink()),
        names_(to.names),
        treespec_(to.context.treespec),
        arguments_(arguments),
        values_(values) {}

  void signature(PyObject* signature);
  void input_spec(PyObject* spec);
  void output_spec(PyObject* spec);
  void argument_spec(PyObject* spec);
  // The module call graph: a sequence of entries.
  void calls(PyObject* entries);
  void call(PyObject* entry);
  void call_signature(PyObject* signature);

 private:
  void constant_input(PyObject* argument);
  void named(Type type, PyObject* argument);

  SchemaWriter& out_;
  EventSink& sink_;
  NodeNames& names_;
  PyObject* treespec_;  // see EncodeContext
  ArgumentEncoder& arguments_;
  ValueEncoder& values_;
};

}  // namespace fxpress::serde
