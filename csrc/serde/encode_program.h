// Exported programs.
#pragma once

#include "py/object.h"
#include "serde/encoders.h"

namespace fxpress::serde {

class ProgramEncoder {
 public:
  // facts: what Python knows of the program: opset_version {str: int}, range_constraints
  // {str: (min, max)}, schema_version (major, minor), verifiers, torch_version, guards_code,
  // metadata {str: str}, namedtuple_fields {str: names}, read when its turn comes. All borrowed.
  ProgramEncoder(Encoders& encoders, PyObject* facts)
      : encoders_(encoders), out_(encoders.to.out), sink_(out_.sink()), facts_(facts) {}

  // Doubtful: with a check in the context, when the program may not be valid.
  void program(PyObject* graph_module, PyObject* signature, PyObject* calls);

 private:
  void graph_module(PyObject* graph_module, PyObject* signature, PyObject* calls);
  void opset_version();
  void range_constraints();
  void schema_version();
  PyObject* fact(const char* name) const;

  Encoders& encoders_;
  SchemaWriter& out_;
  EventSink& sink_;
  PyObject* facts_;
};

}  // namespace fxpress::serde
