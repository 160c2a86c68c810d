// The meta with which nodes are born that torch would trace.
#pragma once

#include "fx/symbols.h"

namespace fxpress::split {

// Under torch.fx.traceback.preserve_node_meta, nodes that unpack a partition's outputs have meta.
// One call's worth: torch is asked once, when the first such node is made.
class CurrentMeta {
 public:
  // A dict of the caller's own, or empty.
  Ref fresh() {
    if (!meta_) meta_ = Ref::steal(PyObject_CallNoArgs(fx::symbols.current_node_meta));
    return meta_.get() == Py_None ? Ref() : Ref::steal(PyDict_Copy(meta_.get()));
  }

 private:
  Ref meta_;  // a dict, or None; empty until asked for
};

}  // namespace fxpress::split
