// Parts of programs, for those who put a program together by themselves.
#pragma once

#include <string_view>

#include "py/object.h"
#include "serde/encoders.h"

namespace fxpress::serde {

class PartEncoder {
 public:
  // results: list that gets (name, value) for what a node defines; merged: dict of {name of a node
  // that is not written, as another takes the same result: its name}, read and filled. Borrowed.
  PartEncoder(Encoders& encoders, PyObject* results, PyObject* merged)
      : encoders_(encoders), results_(results), merged_(merged) {
    encoders.to.names.begin_part(merged);
  }

  // One part; see encode_part() for the kinds and their values.
  void part(std::string_view kind, PyObject* values);

 private:
  void single_node(PyObject* node, bool whole);
  void inputs(PyObject* values);
  void graph(PyObject* graph_module);

  Encoders& encoders_;
  PyObject* results_;
  PyObject* merged_;
};

}  // namespace fxpress::serde
