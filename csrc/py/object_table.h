// Defines containers that own Python objects during a call, and number the objects by identity.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "core/flat_map.h"
#include "core/ids.h"
#include "py/object.h"

namespace fxpress::cpython {

// Numbers objects by identity. For example, 1, True and 1.0 get three different numbers.
class ObjectTable {
 public:
  explicit ObjectTable(size_t expected = 0) : ids_(expected) { objects_.reserve(expected); }

  static uint64_t key(PyObject* object) { return reinterpret_cast<uintptr_t>(object); }

  // Returns the object's id. Assigns the next id to a new object.
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

  // Frees the index. find() and add() must not be called afterwards.
  void drop_index() { ids_ = core::FlatMap(); }

 private:
  std::vector<Ref> objects_;  // index: id
  core::FlatMap ids_;         // from addresses to ids
};

// Stores one computed value per object. Owns the objects, so that their addresses are not reused.
template <class T>
class ObjectMap {
 public:
  // Returns the value of an object. The first call for an object calls compute(), which may run
  // Python code that calls get() too. The returned address stays valid.
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
  std::deque<T> values_;  // index: id
};

}  // namespace fxpress::cpython
