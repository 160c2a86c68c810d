// Reads the entries of dicts in which Python passes the arguments of an operation.
#pragma once

#include <string>

#include "bind/components.h"
#include "fx/provenance.h"

namespace fxpress::bind {

// Returns dict[key]; TypeError if the value is not a `Type`.
template <class Type = py::object>
Ref entry(const py::dict& dict, const char* key) {
  const py::object value = dict[key];
  if (!py::isinstance<Type>(value))
    throw py::type_error(std::string("entry '") + key +
                         "' has the wrong type: " + Py_TYPE(value.ptr())->tp_name);
  return Ref::borrow(value.ptr());
}

// Converts the result of provenance_rules() in _torch/fx.py.
inline fx::ProvenanceRules provenance_rules(const py::dict& rules) {
  return {entry<py::type>(rules, "source"), entry<py::type>(rules, "source_info"),
          entry<py::dict>(rules, "attributes"), entry<py::function>(rules, "keep")};
}

// Converts dict[key], a result of provenance_rules() in _torch/fx.py.
inline fx::ProvenanceRules provenance_rules(const py::dict& dict, const char* key) {
  return provenance_rules(py::reinterpret_borrow<py::dict>(entry<py::dict>(dict, key).get()));
}

}  // namespace fxpress::bind
