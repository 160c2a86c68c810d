#include "engine/entry.h"
#include "engine/modules.h"
#include "engine/operators.h"
#include "engine/symbols.h"

namespace fxpress::aten {

namespace py = pybind11;
using namespace py::literals;

namespace {

PyMethodDef run_method = {
    "run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(engine::run)), METH_FASTCALL,
    "run(module, graph, args, /)\n--\n\n"
    "Run a graph on the engine, and return its output; a list of arguments is emptied."};

}  // namespace

void bind_engine(py::module_& m) {
  engine::add_plan_type(m.ptr());
  py::list int_operators;
#define FXPRESS_INT_OP(op, function) int_operators.append(#function);
#include "engine/int_ops.def"
#undef FXPRESS_INT_OP
  m.attr("INT_OPERATORS") = py::tuple(int_operators);
  m.def(
      "initialize_engine",
      [](const py::dict& objects, const py::object& tables) {
        engine::initialize_symbols(objects.ptr(), tables.ptr());
        engine::watch_operators();
        engine::watch_dicts();
      },
      "objects"_a, "tables"_a,
      "Fill the engine's table of Python objects; share the `tables` of _native.");
  m.def(
      "register_forward",
      [](const py::object& function, bool dispatches, bool counts) {
        const auto dispatcher = counts ? engine::Forward::kCounting : engine::Forward::kDispatcher;
        engine::register_forward(function.ptr(),
                                 dispatches ? dispatcher : engine::Forward::kModule);
      },
      "function"_a, "dispatches"_a, "counts"_a,
      "Register a forward() that runs its module's graph. A dispatcher may count its calls.");
  m.def("plan_info", engine::plan_info, "graph"_a,
        "Return statistics of the graph's plan; None if it does not have a plan.");
  m.def("next_call", engine::next_call, "dispatcher"_a,
        "Return the index of the dispatcher's next call; -1 if its counter is not an int.");
  m.def("set_next_call", engine::set_next_call, "dispatcher"_a, "index"_a,
        "Set the index of the dispatcher's next call.");
  PyObject* run = PyCFunction_New(&run_method, nullptr);
  if (run == nullptr) throw py::error_already_set();
  m.attr("run") = py::reinterpret_steal<py::object>(run);
}

}  // namespace fxpress::aten
