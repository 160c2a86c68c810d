// Reads the entries of the dicts that contain an operation's arguments.
#pragma once

#include <string>

#include "bind/components.h"
#include "fx/provenance.h"

namespace fxpress::bind {

// Returns dict[key]. Raises TypeError if the value is not a `Type`.
template <class Type = py::object>
Ref entry(const py::dict& dict, const char* key) {
  const py::object value = dict[key];
  if (!py::isinstance<Type>(value))
    throw py::type_error(std::string("entry '") + key +
                         "' has the wrong type: " + Py_TYPE(value.ptr())->tp_name);
  return Ref::borrow(value.ptr());
}

// Converts a dict that provenance_rules() in _torch/fx.py returned.
inline fx::ProvenanceRules provenance_rules(const py::dict& rules) {
  return {entry<py::type>(rules, "source"), entry<py::type>(rules, "source_info"),
          entry<py::dict>(rules, "attributes"), entry<py::function>(rules, "keep")};
}

// Converts dict[key], which provenance_rules() in _torch/fx.py returned.
inline fx::ProvenanceRules provenance_rules(const py::dict& dict, const char* key) {
  return provenance_rules(py::reinterpret_borrow<py::dict>(entry<py::dict>(dict, key).get()));
}

}  // namespace fxpress::bind
