// Replaces objects of torch in all modules at once. The replacements stay in place until the last
// Lease is released.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "py/object.h"

namespace fxpress::install {

// Removes each key of a dict that is a tuple and contains one of the objects in the tuple `parts`.
// Objects are compared by identity.
void forget_keys(const pybind11::dict& dict, const pybind11::tuple& parts);

// An object of torch and its replacement.
struct Patch {
  Ref original;
  Ref stand_in;
};

struct Patches {
  std::vector<Patch> patches;
  // Dicts in which `original` may be a key. `stand_in` replaces this key.
  std::vector<Ref> tables;
  // Built-in functions that are called without arguments after names have changed. They must not
  // run Python code.
  std::vector<Ref> callbacks;
};

// The result of prepare(): policy, pairs (original, stand-in), Patches::tables, Patches::callbacks.
using Prepared =
    std::tuple<pybind11::str, std::vector<std::pair<pybind11::object, pybind11::object>>,
               pybind11::list, pybind11::list>;

// A request for the replacements, by one install() or one `with installed()`.
struct Lease {
  Ref policy;      // str: the argument on_unsupported
  bool is_scoped;  // whether a context manager releases the lease
};

// Replaces objects of torch and restores them. Runs no Python code meanwhile, so that other
// threads, signal handlers and forked children observe all replacements or none.
class Installation {
 public:
  // Adds a lease. If it is the first lease, applies the patches in `prepared`; otherwise ignores
  // them. scoped: see Lease::is_scoped.
  const Lease* acquire(const Prepared& prepared, bool scoped);
  // Removes a lease. The removal of the last lease restores the originals. May be called twice.
  void release(const Lease* lease);
  // Releases the newest lease that is not scoped. Raises RuntimeError if there is none.
  void release_newest();

  // Returns the policy of the newest lease; empty if nothing is replaced.
  Ref policy() const;
  size_t count() const { return leases_.size(); }

 private:
  void put_in_place(const Prepared& prepared);
  void restore();

  std::vector<std::unique_ptr<Lease>> leases_;  // in the order of acquire()
  Patches active_;                              // patches in place; empty without leases
};

// Implements `with installed()`. prepare() may be interrupted, because it changes no shared state.
class InstalledBlock {
 public:
  // prepare: returns Prepared. decorate: wraps a function so that it runs inside a block.
  InstalledBlock(pybind11::object installation, pybind11::object prepare,
                 pybind11::object decorate);
  pybind11::object call(const pybind11::object& function) const { return decorate_(function); }
  void enter();
  void exit(const pybind11::args&);

 private:
  pybind11::object owner_;
  Installation* installation_;  // the C++ object of owner_
  pybind11::object prepare_;
  pybind11::object decorate_;
  const Lease* lease_ = nullptr;  // null while the block is not active
};

}  // namespace fxpress::install
