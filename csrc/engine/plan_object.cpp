#include "engine/plan_object.h"

#include <utility>

namespace fxpress::engine {

namespace {

struct PlanObject {
  PyObject_HEAD Plan* plan;  // owned; null once the collector has cleared it
};

PyTypeObject* plan_type = nullptr;  // owned, held until the process ends

// Calls visit(object) for every object that the plan owns.
template <class Visit>
int visit_objects(const Plan& plan, Visit visit) {
  int status = 0;
  const auto look = [&](const Ref& ref) {
    if (status == 0 && ref) status = visit(ref.get());
  };
  look(plan.graph);
  for (const ModuleRef& module : plan.modules) {
    look(module.module);
    look(module.name);
  }
  for (const Refusal& refusal : plan.refusals) look(refusal.type);
  for (const Load& load : plan.loads) look(load.name);
  for (const Ref& object : plan.objects) look(object);
  for (const Enter& enter : plan.enters) {
    look(enter.graph);
    look(enter.arg_names);
  }
  for (const NodeGuard& guard : plan.nodes) {
    for (const Ref* ref : {&guard.node, &guard.op, &guard.target, &guard.args, &guard.kwargs}) {
      look(*ref);
    }
  }
  return status;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  const Plan* plan = reinterpret_cast<PlanObject*>(self)->plan;
  if (plan == nullptr) return 0;
  return visit_objects(*plan, [&](PyObject* object) { return visit(object, arg); });
}

int clear(PyObject* self) {
  delete std::exchange(reinterpret_cast<PlanObject*>(self)->plan, nullptr);
  return 0;
}

void dealloc(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear(self);
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

// Copies and pickles of a graph get None in the plan's place, and make a plan of their own.
PyObject* reduce(PyObject*, PyObject*) {
  return Py_BuildValue("(O())", reinterpret_cast<PyObject*>(Py_TYPE(Py_None)));
}

PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("A graph's instructions; made and used by run().")},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {
    "fxpress." FXPRESS_ATEN_NAME ".Plan",
    sizeof(PlanObject),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    slots,
};

}  // namespace

void add_plan_type(PyObject* extension) {
  plan_type = reinterpret_cast<PyTypeObject*>(check(PyType_FromSpec(&spec)));
  check(PyModule_AddObjectRef(extension, "Plan", reinterpret_cast<PyObject*>(plan_type)));
}

Ref new_plan_object(std::unique_ptr<Plan> plan) {
  PlanObject* object = PyObject_GC_New(PlanObject, plan_type);
  Ref owner = Ref::steal(reinterpret_cast<PyObject*>(object));
  object->plan = plan.release();
  PyObject_GC_Track(owner.get());
  return owner;
}

Plan* plan_of(PyObject* object) {
  if (object == nullptr || !Py_IS_TYPE(object, plan_type)) return nullptr;
  return reinterpret_cast<PlanObject*>(object)->plan;
}

}  // namespace fxpress::engine
