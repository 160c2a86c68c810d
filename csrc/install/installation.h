// The installation in torch's place: names of modules that stand for other objects from one moment
// to the next, the open leases, and the patches that they share.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::install {

// Takes the keys out of a dict that are tuples with one of the parts in them, by identity.
void forget_keys(PyObject* dict, PyObject* parts);

// An object of torch's, and what stands in for it.
struct Patch {
  Ref original;
  Ref stand_in;
};

struct Patches {
  std::vector<Patch> patches;
  // Dicts in which a stand-in also replaces its original as a key.
  std::vector<Ref> tables;
  // Called when names have changed. Built-in functions without arguments: nobody's Python code.
  std::vector<Ref> callbacks;
};

// One install() or one `with installed()`.
struct Lease {
  Ref policy;      // a str
  bool is_scoped;  // held by a context manager, which alone may give it back
};

// Every change is made without running Python code: threads, signal handlers and forked children
// find all of it or nothing.
class Installation {
 public:
  // The first lease puts the patches in place; those of later ones are not needed.
  const Lease* acquire(Lease lease, Patches patches);
  // The last one takes the patches out again. Does nothing when the lease was given back.
  void release(const Lease* lease);
  // The newest lease that no context manager holds; null: there is none.
  const Lease* newest() const;

  // The policy in force, borrowed; null while torch is itself.
  PyObject* policy() const;
  size_t count() const { return leases_.size(); }

 private:
  void put_in_place(Patches patches);
  void restore();

  std::vector<std::unique_ptr<Lease>> leases_;  // in the order they were taken
  Patches active_;                              // in place now
};

// A policy, pairs of an original and its stand-in, tables, and callbacks.
using Prepared =
    std::tuple<pybind11::str, std::vector<std::pair<pybind11::object, pybind11::object>>,
               pybind11::list, pybind11::list>;

// Takes a lease; a scoped one belongs to a context manager.
const Lease* acquire(Installation& installation, const Prepared& prepared, bool scoped);

// Gives the newest lease back that is not scoped; RuntimeError when there is none.
void release_newest(Installation& installation);

// `with installed()`. What `prepare` does has no effect on others, and may be interrupted.
class InstalledBlock {
 public:
  // installation: an Installation. prepare: () -> Prepared. decorate: (function) -> function.
  InstalledBlock(pybind11::object installation, pybind11::object prepare,
                 pybind11::object decorate);
  pybind11::object call(const pybind11::object& function) const { return decorate_(function); }
  void enter();
  void exit(const pybind11::args&);

 private:
  pybind11::object owner_;
  Installation* installation_;  // of the owner
  pybind11::object prepare_;
  pybind11::object decorate_;
  const Lease* lease_ = nullptr;  // while the block runs
};

}  // namespace fxpress::install
