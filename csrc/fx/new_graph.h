// Makes empty graphs.
#pragma once

#include "py/object.h"

namespace fxpress::fx {

// What torch.fx.Graph() returns, without the Python code of its constructor and of its parts'.
Ref new_graph();

}  // namespace fxpress::fx
