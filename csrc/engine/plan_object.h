// The Python object that owns a plan. It lives in the `__dict__` of the plan's graph, where the
// garbage collector sees the circle of graph, plan and nodes.
#pragma once

#include <memory>

#include "engine/plan.h"

namespace fxpress::engine {

// Makes the type and adds it to the extension module.
void add_plan_type(PyObject* extension);

Ref new_plan_object(std::unique_ptr<Plan> plan);

// The plan in an object, or null when it is none or was cleared.
Plan* plan_of(PyObject* object);

}  // namespace fxpress::engine
