#include "fx/arguments.h"

#include "py/calls.h"
#include "py/containers.h"

namespace fxpress::fx {

namespace {

// Returns whether `values` are the same objects as the children of the container.
bool unchanged(ArgCursor cursor, const std::vector<Ref>& values) {
  cursor.position = 0;
  for (const Ref& value : values) {
    if (cursor.next() != value.get()) return false;
  }
  return true;
}

Ref make_tuple(PyObject* original, std::vector<Ref>& values) {
  Ref result = take_as_tuple(values);
  if (PyTuple_CheckExact(original) || !find_attr(original, names.fields)) return result;
  return Ref::steal(
      PyObject_CallObject(reinterpret_cast<PyObject*>(Py_TYPE(original)), result.get()));
}

Ref make_dict(const std::vector<Ref>& keys, const std::vector<Ref>& values) {
  Ref result = call(symbols.immutable_dict_type);
  for (size_t i = 0; i < values.size(); ++i) {
    check(PyDict_SetItem(result.get(), keys[i].get(), values[i].get()));
  }
  return result;
}

}  // namespace

Ref ArgMapper::finish(OpenContainer& container) {
  PyObject* original = container.cursor.container;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(original));
  const bool shareable =
      container.cursor.kind == ArgKind::kTuple  ? PyTuple_CheckExact(original)
      : container.cursor.kind == ArgKind::kList ? type == symbols.immutable_list_type
      : container.cursor.kind == ArgKind::kDict ? type == symbols.immutable_dict_type
                                                : true;
  if (shareable && unchanged(container.cursor, container.values)) return Ref::borrow(original);
  switch (container.cursor.kind) {
    case ArgKind::kTuple:
      return make_tuple(original, container.values);
    case ArgKind::kList:
      return new_immutable_list(container.values);
    case ArgKind::kDict:
      return make_dict(container.keys, container.values);
    default:
      return Ref::steal(PySlice_New(container.values[0].get(), container.values[1].get(),
                                    container.values[2].get()));
  }
}

}  // namespace fxpress::fx
