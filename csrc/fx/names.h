// Creates names of nodes, and the Python strings of these names.
#pragma once

#include <memory>
#include <vector>

#include "core/name_table.h"
#include "core/string_pool.h"
#include "py/object_table.h"

namespace fxpress::fx {

// Names the nodes of all graphs that one call writes. Creates one Python string for each name.
class NameWriter {
 public:
  enum class Forbidden : uint8_t {
    kForNodes,   // names that _Namespace does not allow for a node
    kForSource,  // names that _Namespace does not allow for a global of generated source
  };
  explicit NameWriter(Forbidden forbidden);
  ~NameWriter();
  NameWriter(const NameWriter&) = delete;
  NameWriter& operator=(const NameWriter&) = delete;

  // Starts an empty namespace. If there are many names, forgets them and invalidates their ids,
  // because a call that writes a million nodes into small graphs must not store a million names.
  void begin_graph();

  core::NameTable& table() { return tables_->names; }

  // Returns the name that Graph._target_to_str proposes for a node with this target.
  core::StringId candidate_for_target(PyObject* target);

  // Like candidate_for_target(), for a target that is an ASCII string.
  core::StringId candidate_for_text(std::string_view target);

  // Returns `name` itself as a candidate.
  core::StringId candidate(PyObject* name);

  // Returns a name as a Python string: a borrowed reference, owned by this Names object.
  PyObject* string(core::StringId id);

  // Returns the last number added to a base name in the current namespace, as a Python int.
  Ref count(core::StringId base);

  std::string_view text(core::StringId id) const { return tables_->pool.text(id); }
  core::StringId intern(std::string_view text) { return tables_->pool.intern(text); }

 private:
  core::StringId add(PyObject* name);

  struct Tables {
    core::StringPool pool;                  // the texts of the ids
    core::NameTable names{pool};            // the current namespace
    std::vector<Ref> strings{};             // index: id; created when needed
    ObjectMap<core::StringId> by_target{};  // from targets to candidates
    Py_ssize_t forbidden = 0;               // size of symbols.illegal_names at the last reset()
  };
  void reset();
  static std::unique_ptr<Tables>& spare(Forbidden forbidden);

  Forbidden forbidden_;             // which names are not allowed
  std::unique_ptr<Tables> tables_;  // replaced by reset()
};

}  // namespace fxpress::fx
