// torch.fx.passes.split_module.split_module: assign, plan, write.
#pragma once

#include "split/plan.h"

namespace fxpress::split {

Ref split_module(PyObject* module, PyObject* callback, const SplitOptions& options);

}  // namespace fxpress::split
