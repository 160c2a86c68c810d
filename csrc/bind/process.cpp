// Binds context managers that pause the garbage collector or replace functions of torch. Also binds
// functions that exchange an attribute or remove keys of a dict.

#include <pybind11/stl.h>

#include "bind/closed_class.h"
#include "bind/components.h"
#include "install/installation.h"
#include "py/blocks.h"
#include "py/gc_pause.h"

namespace fxpress::bind {

namespace {

template <class Held>
void bind_held_block(py::module_& m, const char* name, const char* doc) {
  using Block = HeldBlock<Held>;
  closed_class<Block>(m, name, doc)
      .def(py::init(), "Create the block; __enter__() begins it.")
      .def("__enter__", &Block::enter, "Begin the block.")
      .def("__exit__", &Block::exit, "End the block.");
}

void bind_installation(py::module_& m) {
  using install::Installation;
  using install::InstalledBlock;
  closed_class<Installation>(m, "Installation",
                             "The open leases, which share the replacements of torch's objects.")
      .def(py::init(), "Begin without a lease.")
      .def(
          "acquire",
          [](Installation& self, const install::Prepared& prepared) {
            self.acquire(prepared, false);
          },
          "prepared"_a, py::pos_only(), "Acquire a lease; the first one replaces torch's objects.")
      .def("release_newest", &Installation::release_newest,
           "Release the newest lease that no `with` block holds; RuntimeError if there is none.")
      .def_property_readonly("policy", &Installation::policy,
                             "The policy in force; None while nothing is replaced.")
      .def_property_readonly("leases", &Installation::count, "The number of open leases.");
  closed_class<InstalledBlock>(m, "InstalledBlock", "A lease that a `with` block holds.")
      .def(py::init<py::object, py::object, py::object>(), "installation"_a, "prepare"_a,
           "decorate"_a, py::pos_only(), "Create a block; `prepare()` returns what to replace.")
      .def("__call__", &InstalledBlock::call, "function"_a, py::pos_only(),
           "Return the function, decorated to hold a lease during each call.")
      .def("__enter__", &InstalledBlock::enter, "Acquire the lease.")
      .def("__exit__", &InstalledBlock::exit, "Release the lease.");
}

}  // namespace

void bind_process(py::module_& m) {
  bind_held_block<GcPause>(
      m, "GcPause",
      "A `with` block in which the garbage collector is paused; counted across threads.");
  bind_held_block<RareCollections>(
      m, "RareCollections",
      "A `with` block in which the collector runs rarely, in all threads; blocks may overlap.");
  closed_class<Block>(m, "Block",
                      R"(A `with` block that begins with one function and ends with another.

The second function gets the result of the first. If both are built-in functions, a signal handler
cannot raise in between.)")
      .def(py::init<py::object, py::object>(), "begin"_a, "end"_a, py::pos_only(),
           "Create the block from its two functions.")
      .def("__enter__", &Block::enter, "Call the first function.")
      .def("__exit__", &Block::exit, "Call the second function.");
  bind_installation(m);
  m.def("forget_keys", install::forget_keys, "dict"_a, "parts"_a, py::pos_only(),
        "Remove the keys of `dict` that are tuples and contain one of `parts`.");
  m.def("gc_pauses", gc_pauses,
        "Return the number of active pauses of the garbage collector; 0 outside of native calls.");
  m.def("end_pauses_of_other_threads", end_pauses_of_other_threads,
        "In a forked child, end the collector's pauses that other threads of the parent held.");
  // Registered here, so that importing this module is enough to handle forks.
  py::module_::import("os").attr("register_at_fork")("after_in_child"_a =
                                                         m.attr("end_pauses_of_other_threads"));
  m.def("exchange_attribute", exchange_attribute, "owner"_a, "name"_a, "value"_a, py::pos_only(),
        "Set an attribute, and return its old value.");
}

}  // namespace fxpress::bind
