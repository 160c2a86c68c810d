// Where the fields of an object lie, as the member descriptors of its type say.
#pragma once

#include <Python.h>
#include <structmember.h>

#include "py/object.h"

namespace fxpress::cpython {

// The field that a descriptor stands for; TypeError when it is no member. `owner`: the name of the
// type, for messages.
inline const PyMemberDef* member(PyObject* descriptor, const char* owner) {
  if (!Py_IS_TYPE(descriptor, &PyMemberDescr_Type)) {
    raise(PyExc_TypeError, "%s keeps a field as %R, not as a member", owner, descriptor);
  }
  return reinterpret_cast<PyMemberDescrObject*>(descriptor)->d_member;
}

// The offset of a field that is an object; TypeError for others.
inline Py_ssize_t object_offset(PyObject* descriptor, const char* owner) {
  const PyMemberDef* field = member(descriptor, owner);
  if (field->type != T_OBJECT && field->type != T_OBJECT_EX) {
    raise(PyExc_TypeError, "field %s of %s is no object", field->name, owner);
  }
  return field->offset;
}

// The offset of a field that is a bool; TypeError for others.
inline Py_ssize_t bool_offset(PyObject* descriptor, const char* owner) {
  const PyMemberDef* field = member(descriptor, owner);
  if (field->type != T_BOOL) {
    raise(PyExc_TypeError, "field %s of %s is no bool", field->name, owner);
  }
  return field->offset;
}

}  // namespace fxpress::cpython
