// Node names: the native name table on one side, Python strings on the other.
#pragma once

#include <vector>

#include "core/flat_map.h"
#include "core/name_table.h"
#include "core/string_pool.h"
#include "fx/py.h"

namespace fxpress::fx {

// Serves every graph that one call writes. Each distinct name is one Python string.
class NameWriter {
 public:
  enum class Forbidden : uint8_t {
    kForNodes,   // what _Namespace refuses to an anonymous candidate
    kForSource,  // what it refuses to an object of its own in generated source
  };
  explicit NameWriter(Forbidden forbidden);

  core::NameTable& table() { return table_; }

  // The candidate for a node that calls `target`, by the rule of Graph._target_to_str.
  core::StringId candidate_for_target(PyObject* target);

  // `name` itself as a candidate.
  core::StringId candidate(PyObject* name);

  // The Python string of a name: borrowed, owned by this object.
  PyObject* string(core::StringId id);

  std::string_view text(core::StringId id) const { return pool_.text(id); }
  core::StringId intern(std::string_view text) { return pool_.intern(text); }

 private:
  core::StringId add(PyObject* name);

  core::StringPool pool_;
  core::NameTable table_;
  std::vector<Ref> strings_;  // by string id; empty until asked for
  core::FlatMap by_target_;   // address of a target -> candidate
  std::vector<Ref> targets_;  // those targets: an address must not be used again
};

}  // namespace fxpress::fx
