// Owns Python objects while a call runs and numbers them by identity.
#pragma once

#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "py/object.h"

namespace fxpress::cpython {

// 1, True and 1.0 are three objects here: identity counts, not equality.
class ObjectTable {
 public:
  explicit ObjectTable(size_t expected = 0) : ids_(expected) { objects_.reserve(expected); }

  static uint64_t key(PyObject* object) { return reinterpret_cast<uintptr_t>(object); }

  // The object's id, new if it is seen for the first time.
  core::ObjectId add(PyObject* object) {
    const auto [id, added] = ids_.insert(key(object), static_cast<uint32_t>(objects_.size()));
    if (added) objects_.push_back(Ref::borrow(object));
    return core::ObjectId(id);
  }

  // The object's id, or FlatMap::kAbsent.
  uint32_t find(PyObject* object) const { return ids_.find(key(object)); }

  PyObject* operator[](size_t id) const { return objects_[id].get(); }
  PyObject* operator[](core::ObjectId id) const { return objects_[id.value()].get(); }
  size_t size() const { return objects_.size(); }
  const std::vector<Ref>& objects() const { return objects_; }

  // Frees the way from objects to ids; find() and add() are over.
  void drop_index() { ids_ = core::FlatMap(); }

 private:
  std::vector<Ref> objects_;  // by id
  core::FlatMap ids_;         // address -> id
};

}  // namespace fxpress::cpython
