// Owns Python objects while a call runs and numbers them by identity.
#pragma once

#include <deque>
#include <utility>
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

// Values that are computed once for each object. The objects are kept, so that no other object gets
// their addresses.
template <class T>
class ObjectMap {
 public:
  // The value of an object, which compute() returns the first time; it keeps its address. compute()
  // may run Python code that asks for values too.
  template <class F>
  const T& get(PyObject* object, F&& compute) {
    const uint32_t known = objects_.find(object);
    if (known != core::FlatMap::kAbsent) return values_[known];
    T value = compute();
    const core::ObjectId id = objects_.add(object);
    if (id.value() == values_.size()) values_.push_back(std::move(value));
    return values_[id.value()];
  }

 private:
  ObjectTable objects_;
  std::deque<T> values_;  // by id
};

}  // namespace fxpress::cpython
