// Defines tables that own Python objects during a call and number the objects by identity.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "py/object.h"

namespace fxpress::cpython {

// Numbers objects by identity: 1, True and 1.0 are three objects.
class ObjectTable {
 public:
  explicit ObjectTable(size_t expected = 0) : ids_(expected) { objects_.reserve(expected); }

  static uint64_t key(PyObject* object) { return reinterpret_cast<uintptr_t>(object); }

  // Returns the object's id; a new object gets a new id.
  core::ObjectId add(PyObject* object) {
    const auto [id, added] = ids_.insert(key(object), static_cast<uint32_t>(objects_.size()));
    if (added) objects_.push_back(Ref::borrow(object));
    return core::ObjectId(id);
  }

  // Returns the object's id, or FlatMap::kAbsent.
  uint32_t find(PyObject* object) const { return ids_.find(key(object)); }

  PyObject* operator[](size_t id) const { return objects_[id].get(); }
  PyObject* operator[](core::ObjectId id) const { return objects_[id.value()].get(); }
  size_t size() const { return objects_.size(); }
  const std::vector<Ref>& objects() const { return objects_; }

  // Frees the index from objects to ids; find() and add() must not be called afterwards.
  void drop_index() { ids_ = core::FlatMap(); }

 private:
  std::vector<Ref> objects_;  // by id
  core::FlatMap ids_;         // address -> id
};

// Stores values that are computed once for each object. The map owns the objects, so that no other
// object can get their addresses.
template <class T>
class ObjectMap {
 public:
  // Returns the value of an object, computed on the first call; the address of the value is stable.
  // compute() may run Python code that calls get() too.
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
