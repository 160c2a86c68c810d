// Entries of the dicts in which Python hands over what an operation needs.
#pragma once

#include <string>

#include "bind/components.h"
#include "fx/provenance.h"

namespace fxpress::bind {

// TypeError for an entry of another type.
template <class Type = py::object>
Ref entry(const py::dict& dict, const char* key) {
  const py::object value = dict[key];
  if (!py::isinstance<Type>(value)) throw py::type_error(std::string("wrong type of ") + key);
  return Ref::borrow(value.ptr());
}

// `provenance_rules` of _torch/fx.py.
inline fx::ProvenanceRules provenance_rules(const py::dict& rules) {
  return {entry<py::type>(rules, "source"), entry<py::type>(rules, "source_info"),
          entry<py::dict>(rules, "attributes"), entry<py::function>(rules, "keep")};
}

// Those of an entry.
inline fx::ProvenanceRules provenance_rules(const py::dict& dict, const char* key) {
  return provenance_rules(py::reinterpret_borrow<py::dict>(entry<py::dict>(dict, key).get()));
}

}  // namespace fxpress::bind
