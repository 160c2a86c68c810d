// Integers as the sinks take them; texts are in py/text.h.
#pragma once

#include "py/object.h"
#include "py/text.h"
#include "schema/event_sink.h"

namespace fxpress::serde {

// An int of any size.
inline void write_integer(PyObject* value, schema::EventSink& sink) {
  int overflow = 0;
  const long long small = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (small == -1 && PyErr_Occurred() != nullptr) throw_python_error();
  if (overflow == 0) return sink.integer(small);
  sink.big_integer(utf8(Ref::steal(PyNumber_ToBase(value, 10)).get()));
}

}  // namespace fxpress::serde
