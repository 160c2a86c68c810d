// The rule that names a partition and its submodule.
#pragma once

#include "py/object.h"

namespace fxpress::split {

// "0", or "pp_0" with an affix: the text by which partitions are told apart.
Ref partition_name(PyObject* id, PyObject* affix);

// "submod_0": where the split module has the partition called "0".
Ref submodule_name(PyObject* partition);

}  // namespace fxpress::split
