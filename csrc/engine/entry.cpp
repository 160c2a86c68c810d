#include "engine/entry.h"

#include <utility>

#include "engine/builder.h"
#include "engine/convert.h"
#include "engine/operators.h"
#include "engine/run.h"
#include "py/instance_dict.h"

namespace fxpress::engine {

namespace py = pybind11;

Symbols symbols;

namespace {

struct PlanObject {
  PyObject_HEAD Plan* plan;  // null after the garbage collector cleared it
};

PyTypeObject* plan_type = nullptr;  // never released

// Calls visit(object) for every object that the plan owns.
template <class Visit>
int visit_objects(const Plan& plan, Visit visit) {
  int status = 0;
  const auto visit_ref = [&](const Ref& ref) {
    if (status == 0 && ref) status = visit(ref.get());
  };
  visit_ref(plan.graph);
  for (const ModuleRef& module : plan.modules) {
    visit_ref(module.module);
    visit_ref(module.name);
  }
  for (const Refusal& refusal : plan.refusals) visit_ref(refusal.type);
  for (const Load& load : plan.loads) visit_ref(load.name);
  for (const Ref& object : plan.objects) visit_ref(object);
  for (const Enter& enter : plan.enters) {
    visit_ref(enter.graph);
    visit_ref(enter.arg_names);
  }
  for (const NodeGuard& guard : plan.nodes) {
    for (const Ref* ref : {&guard.node, &guard.op, &guard.target, &guard.args, &guard.kwargs}) {
      visit_ref(*ref);
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

// Reduces a plan to None. A copied or unpickled graph has no plan, and its next run builds one.
PyObject* reduce(PyObject*, PyObject*) {
  return Py_BuildValue("(O())", reinterpret_cast<PyObject*>(Py_TYPE(Py_None)));
}

PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc,
     const_cast<char*>("The instructions of a graph, which run() creates and executes.")},
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

Ref new_plan_object(std::unique_ptr<Plan> plan) {
  PlanObject* object = PyObject_GC_New(PlanObject, plan_type);
  Ref owner = Ref::steal(reinterpret_cast<PyObject*>(object));
  object->plan = plan.release();
  PyObject_GC_Track(owner.get());
  return owner;
}

// Returns the plan in a plan object. Returns null if it is cleared or `object` has another type.
Plan* plan_of(PyObject* object) {
  if (object == nullptr || !Py_IS_TYPE(object, plan_type)) return nullptr;
  return reinterpret_cast<PlanObject*>(object)->plan;
}

// Returns whether the plan is valid for this module and the current nodes of this graph.
bool fits(const Plan& plan, PyObject* module, PyObject* graph) {
  if (plan.stale || plan.graph.get() != graph || plan.kernels != kernels_version() ||
      plan.operators != operators_gone() ||
      (plan.runs != 0 && plan.modules[0].module.get() != module) ||
      graph_root(graph) != plan.root || !same_nodes(plan, plan.root, 0, plan.root_nodes)) {
    return false;
  }
  for (const Refusal& refusal : plan.refusals) {
    auto* type = reinterpret_cast<PyTypeObject*>(refusal.type.get());
    if (current_version(type) != refusal.version) return false;
  }
  return true;
}

// Marks a plan as in use during a run. Only a plan in use owns its root module, because copies of a
// module share one graph and its plan, and an unused plan must not keep one of the copies alive.
class Lease {
 public:
  Lease(Ref owner, PyObject* module) : owner_(std::move(owner)), plan_(plan_of(owner_.get())) {
    if (plan_->runs++ == 0) plan_->modules[0].module = Ref::borrow(module);
  }
  Lease(Lease&& other) noexcept
      : owner_(std::move(other.owner_)), plan_(std::exchange(other.plan_, nullptr)) {}
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    Ref root;
    if (plan_ != nullptr && --plan_->runs == 0) root = std::move(plan_->modules[0].module);
  }

  PyObject* owner() const { return owner_.get(); }
  Plan& plan() const { return *plan_; }

 private:
  Ref owner_;   // the plan object, which is not cleared while this reference exists
  Plan* plan_;  // null after this lease was moved
};

// Returns the graph's plan. Builds a plan if the graph has none or an invalid one.
Lease plan_for(PyObject* module, PyObject* graph) {
  const Ref dict = instance_dict(graph);
  Ref known = Ref::borrow(dict_get(dict.get(), names.plan));
  const Plan* plan = plan_of(known.get());
  if (plan != nullptr && fits(*plan, module, graph)) return {std::move(known), module};
  Lease made(new_plan_object(Builder(module, graph).build()), module);
  // Frees the old plan. Meanwhile other threads may run and find the new plan, which `made` has
  // already marked as in use.
  check(PyDict_SetItem(dict.get(), names.plan, made.owner()));
  return made;
}

void check_initialized() {
  if (symbols.annotate != nullptr) return;
  raise(PyExc_RuntimeError, "the engine is not initialized: import fxpress._graphs.engine first");
}

}  // namespace

void initialize_symbols(PyObject* objects, PyObject* tables) {
  fx::adopt_tables(tables);
#define FXPRESS_SYMBOL(name) fill_slot(symbols.name, objects, #name);
#include "engine/symbols.def"
#undef FXPRESS_SYMBOL
}

PyObject* run(PyObject*, PyObject* const* args, Py_ssize_t count) {
  try {
    check_initialized();
    if (count != 3 || (!PyTuple_Check(args[2]) && !PyList_Check(args[2]))) {
      raise(PyExc_TypeError, "run() expects a module, a graph and a tuple of arguments");
    }
    const Lease lease = plan_for(args[0], args[1]);
    // Like Interpreter.boxed_run, empties a list of arguments, so that the run can free them early.
    Ref arguments = Ref::steal(PySequence_Tuple(args[2]));
    if (PyList_Check(args[2])) check(PyList_SetSlice(args[2], 0, PY_SSIZE_T_MAX, nullptr));
    return std::make_unique<Run>(lease.plan())->execute(std::move(arguments)).release();
  } catch (...) {
    set_python_error(std::current_exception());
  }
  return nullptr;
}

py::object plan_info(const py::object& graph) {
  check_initialized();
  const Ref dict = instance_dict(graph.ptr());
  const Plan* plan = plan_of(dict_get(dict.get(), names.plan));
  if (plan == nullptr) return py::none();
  py::dict info;
  info["instructions"] = plan->instructions.size();
  info["boxed"] = plan->boxed.size();
  info["inlined"] = plan->enters.size();
  info["slots"] = plan->slots;
  info["stale"] = plan->stale;
  return info;
}

int64_t next_call(const py::object& dispatcher) {
  check_initialized();
  CallCounters* scope = CallCounters::current();
  return scope == nullptr ? stored_call(dispatcher.ptr()) : scope->next(dispatcher.ptr());
}

void set_next_call(const py::object& dispatcher, int64_t index) {
  check_initialized();
  CallCounters* scope = CallCounters::current();
  if (scope == nullptr) {
    store_call(dispatcher.ptr(), index);
  } else if (scope->next(dispatcher.ptr()) >= 0) {
    scope->set(dispatcher.ptr(), index);
  }
}

void add_plan_type(PyObject* extension) {
  plan_type = reinterpret_cast<PyTypeObject*>(check(PyType_FromSpec(&spec)));
  check(PyModule_AddObjectRef(extension, "Plan", reinterpret_cast<PyObject*>(plan_type)));
}

}  // namespace fxpress::engine
