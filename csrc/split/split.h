// torch.fx.passes.split_module.split_module: assign, plan, write.
#pragma once

#include "split/plan.h"

namespace fxpress::fx {

Ref split_module(PyObject* module, PyObject* callback, const SplitOptions& options);

}  // namespace fxpress::fx
