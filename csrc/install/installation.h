// Keeps the installation in torch's place: the open leases, and the patches that they share.
#pragma once

#include <memory>
#include <vector>

#include "install/rebind.h"
#include "py/object.h"

namespace fxpress::install {

// An object of torch's, and what stands in for it.
struct Patch {
  Ref original;
  Ref stand_in;
};

struct Patches {
  std::vector<Patch> patches;
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

}  // namespace fxpress::install
