// Creates node names natively, and the Python strings of the names.
#pragma once

#include <memory>
#include <vector>

#include "core/name_table.h"
#include "core/string_pool.h"
#include "py/object_table.h"

namespace fxpress::fx {

// Names the nodes of all graphs that one call writes. Each distinct name is one Python string.
class NameWriter {
 public:
  enum class Forbidden : uint8_t {
    kForNodes,   // names that _Namespace refuses for a node
    kForSource,  // names that _Namespace refuses for a global of generated source
  };
  explicit NameWriter(Forbidden forbidden);
  ~NameWriter();
  NameWriter(const NameWriter&) = delete;
  NameWriter& operator=(const NameWriter&) = delete;

  // Starts an empty namespace. Invalidates all earlier ids if there are many, so that a call that
  // writes a million nodes into small graphs does not keep a million names.
  void begin_graph();

  core::NameTable& table() { return tables_->names; }

  // Returns the candidate for the name of a node that calls `target`, as Graph._target_to_str does.
  core::StringId candidate_for_target(PyObject* target);

  // Like candidate_for_target(), for a target that is an ASCII string.
  core::StringId candidate_for_text(std::string_view target);

  // Returns `name` itself as a candidate.
  core::StringId candidate(PyObject* name);

  // The Python string of a name: borrowed, owned by this object.
  PyObject* string(core::StringId id);

  // Returns the last number that the current namespace has added to a base name, as a Python int.
  Ref count(core::StringId base);

  std::string_view text(core::StringId id) const { return tables_->pool.text(id); }
  core::StringId intern(std::string_view text) { return tables_->pool.intern(text); }

 private:
  core::StringId add(PyObject* name);

  struct Tables {
    core::StringPool pool;                  // the text of every id
    core::NameTable names{pool};            // the namespace
    std::vector<Ref> strings{};             // by string id; created on demand
    ObjectMap<core::StringId> by_target{};  // candidates
    Py_ssize_t forbidden = 0;               // number of names that torch forbade at reset()
  };
  void reset();
  static std::unique_ptr<Tables>& spare(Forbidden forbidden);

  Forbidden forbidden_;             // which names the namespaces refuse
  std::unique_ptr<Tables> tables_;  // replaced when they are large, see begin_graph()
};

}  // namespace fxpress::fx
