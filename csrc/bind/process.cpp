// Binds blocks that change the process while they run: the collector, torch's names, attributes.
// Entering and leaving such a block runs no byte code, so that a signal handler that raises
// (Ctrl-C) finds the block either not begun or ended, and never half way.

#include <pybind11/stl.h>

#include <optional>

#include "bind/closed_class.h"
#include "bind/convert.h"
#include "install/installation.h"
#include "py/gc_pause.h"

namespace fxpress::bind {

namespace {

using install::Installation;

// `with` for something that begins with a constructor and ends with a destructor.
template <class Held>
class HeldBlock {
 public:
  void enter() { held_.emplace(); }
  void exit(const py::args&) { held_.reset(); }

 private:
  std::optional<Held> held_;  // while the block runs
};

template <class Held>
void bind_held_block(py::module_& m, const char* name) {
  using Block = HeldBlock<Held>;
  closed_class<Block>(m, name)
      .def(py::init())
      .def("__enter__", &Block::enter)
      .def("__exit__", &Block::exit);
}

// `with` for two functions: what the first one returns the second one gets. As safe as they are:
// built-in ones let nothing come in between.
class Block {
 public:
  Block(py::object begin, py::object end) : begin_(std::move(begin)), end_(std::move(end)) {}
  void enter() {
    if (token_) raise(PyExc_RuntimeError, "the block was entered already");
    token_ = begin_();
  }
  void exit(const py::args&) {
    if (const py::object token = std::exchange(token_, {})) end_(token);
  }

 private:
  py::object begin_;
  py::object end_;
  py::object token_;  // while the block runs
};

// setattr() that returns what was there.
py::object exchange_attribute(const py::object& object, const py::str& name,
                              const py::object& value) {
  py::object before = object.attr(name);
  object.attr(name) = value;
  return before;
}

Ref ref(const py::handle& object) {
  return Ref::borrow(object.ptr());
}

// A policy, pairs of an original and its stand-in, and callbacks.
using Prepared = std::tuple<py::str, std::vector<std::pair<py::object, py::object>>, py::list>;

const install::Lease* acquire(Installation& installation, const Prepared& prepared, bool scoped) {
  const auto& [policy, pairs, callbacks] = prepared;
  install::Patches patches;
  for (const auto& [original, stand_in] : pairs) {
    patches.patches.push_back({ref(original), ref(stand_in)});
  }
  for (const py::handle& callback : callbacks) patches.callbacks.push_back(ref(callback));
  return installation.acquire({ref(policy), scoped}, std::move(patches));
}

// `with installed()`. What `prepare` does has no effect on others, and may be interrupted.
class InstalledBlock {
 public:
  InstalledBlock(py::object installation, py::object prepare, py::object decorate)
      : owner_(std::move(installation)),
        installation_(owner_.cast<Installation*>()),
        prepare_(std::move(prepare)),
        decorate_(std::move(decorate)) {}
  py::object call(const py::object& function) const { return decorate_(function); }
  void enter() {
    if (lease_ != nullptr) raise(PyExc_RuntimeError, "the block was entered already");
    const auto prepared = prepare_().cast<Prepared>();
    lease_ = acquire(*installation_, prepared, true);
  }
  void exit(const py::args&) { installation_->release(std::exchange(lease_, nullptr)); }

 private:
  py::object owner_;
  Installation* installation_;             // of the owner
  py::object prepare_;                     // () -> Prepared
  py::object decorate_;                    // (function) -> function
  const install::Lease* lease_ = nullptr;  // while the block runs
};

void bind_installation(py::module_& m) {
  closed_class<Installation>(m, "Installation")
      .def(py::init())
      .def("acquire",
           [](Installation& self, const Prepared& prepared) { acquire(self, prepared, false); })
      .def("release_newest",
           [](Installation& self) {
             const install::Lease* newest = self.newest();
             if (newest == nullptr) {
               raise(PyExc_RuntimeError,
                     "fxpress.uninstall() without a matching fxpress.install()");
             }
             self.release(newest);
           })
      .def_property_readonly("policy",
                             [](const Installation& self) {
                               PyObject* policy = self.policy();
                               return policy == nullptr
                                          ? py::object(py::none())
                                          : py::reinterpret_borrow<py::object>(policy);
                             })
      .def_property_readonly("leases", &Installation::count);
  closed_class<InstalledBlock>(m, "InstalledBlock")
      .def(py::init<py::object, py::object, py::object>())
      .def("__call__", &InstalledBlock::call)
      .def("__enter__", &InstalledBlock::enter)
      .def("__exit__", &InstalledBlock::exit);
}

}  // namespace

void bind_process(py::module_& m) {
  initialize_gc();
  bind_held_block<GcPause>(m, "GcPause");
  bind_held_block<RareCollections>(m, "RareCollections");
  closed_class<Block>(m, "Block")
      .def(py::init<py::object, py::object>())
      .def("__enter__", &Block::enter)
      .def("__exit__", &Block::exit);
  bind_installation(m);
  m.def("forget_keys", [](const py::dict& dict, const py::tuple& parts) {
    install::forget_keys(dict.ptr(), parts.ptr());
  });
  m.def("gc_pauses", gc_pauses);
  m.def("end_pauses_of_other_threads", end_pauses_of_other_threads);
  // Here, so that it holds in every process that has this module, whatever else it imports.
  py::module_::import("os").attr("register_at_fork")(py::arg("after_in_child") =
                                                         m.attr("end_pauses_of_other_threads"));
  m.def("exchange_attribute", exchange_attribute);
}

}  // namespace fxpress::bind
