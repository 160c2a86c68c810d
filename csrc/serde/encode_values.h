// Encodes the facts about values: tensors, symbolic numbers, objects and devices.
#pragma once

#include "core/tensor_access.h"
#include "py/object.h"
#include "serde/encoding.h"

namespace fxpress::serde {

class ValueEncoder {
 public:
  explicit ValueEncoder(Encoding& to) : out_(to.out), sink_(to.out.sink()) {}

  void tensor_meta(PyObject* tensor);
  // A number, as the table says: with its expression and hint when it is symbolic.
  void symbolic(Table table, PyObject* value);
  // A spec with the attributes `name` and `class_fqn`.
  void custom_object(PyObject* spec);
  void device(PyObject* device);

 private:
  void tensor_facts(const core::TensorFacts& facts, PyObject* place);

  SchemaWriter& out_;
  EventSink& sink_;
  Ref device_, device_type_, device_index_;  // the last device, and what it is
};

}  // namespace fxpress::serde
