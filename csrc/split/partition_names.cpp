#include "split/partition_names.h"

namespace fxpress::split {

Ref partition_name(PyObject* id, PyObject* affix) {
  Ref text = Ref::steal(PyObject_Str(id));
  if (affix == Py_None) return text;
  return Ref::steal(PyUnicode_FromFormat("%S_%U", affix, text.get()));
}

Ref submodule_name(PyObject* partition) {
  return Ref::steal(PyUnicode_FromFormat("submod_%S", partition));
}

}  // namespace fxpress::split
