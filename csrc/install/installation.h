// Replaces objects of torch under all their names in modules at once. Open leases share the
// replacements, and are counted.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::install {

// Removes the keys of a dict that are tuples and contain an object of the tuple `parts`, by
// identity.
void forget_keys(PyObject* dict, PyObject* parts);

// An object of torch and its replacement.
struct Patch {
  Ref original;
  Ref stand_in;
};

struct Patches {
  std::vector<Patch> patches;
  // Dicts in which the stand-in also replaces the original as a key.
  std::vector<Ref> tables;
  // Called after names have changed: built-in functions without arguments, which run no Python
  // code.
  std::vector<Ref> callbacks;
};

// The lease of one install() or one `with installed()`.
struct Lease {
  Ref policy;      // str: the value of on_unsupported
  bool is_scoped;  // whether a context manager holds and releases it
};

// Applies and reverts replacements without running Python code, so that other threads, signal
// handlers and forked children see all replacements or none.
class Installation {
 public:
  // The first lease applies `patches`; later calls ignore them.
  const Lease* acquire(Lease lease, Patches patches);
  // Releasing the last lease restores the originals. Does nothing for a lease that was released.
  void release(const Lease* lease);
  // Returns the newest lease that no context manager holds, or null.
  const Lease* newest() const;

  // Returns the policy of the newest lease, borrowed; null while nothing is replaced.
  PyObject* policy() const;
  size_t count() const { return leases_.size(); }

 private:
  void put_in_place(Patches patches);
  void restore();

  std::vector<std::unique_ptr<Lease>> leases_;  // in the order of acquire()
  Patches active_;                              // the patches that are applied
};

// The argument of acquire(): policy, pairs (original, stand-in), tables, and callbacks.
using Prepared =
    std::tuple<pybind11::str, std::vector<std::pair<pybind11::object, pybind11::object>>,
               pybind11::list, pybind11::list>;

// Acquires a lease; a context manager holds a scoped lease.
const Lease* acquire(Installation& installation, const Prepared& prepared, bool scoped);

// Releases the newest lease that is not scoped; RuntimeError when there is none.
void release_newest(Installation& installation);

// Implements `with installed()`. `prepare` changes no shared state, so it may be interrupted.
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
  Installation* installation_;  // the object in owner_
  pybind11::object prepare_;
  pybind11::object decorate_;
  const Lease* lease_ = nullptr;  // set while the block runs
};

}  // namespace fxpress::install
