// The gate of serde/gate.h for Python: its errors, and Python's own identifiers.
#pragma once

#include <string_view>

#include "py/object.h"
#include "schema/document.h"

namespace fxpress::serde {

// Raises SerializeError that names the field and the value, where a text of the document breaks the
// rule of its field. A document that has passed is not checked again.
void pass_gate(schema::Document& document);

// Whether a str passes the rule with this name; KeyError when there is none.
bool passes_gate(std::string_view rule, PyObject* text);

// The first item of an iterable that is no str, or breaks the rule; None when there is none.
Ref first_refused(std::string_view rule, PyObject* texts);

// Returns a dict from the name of every rule to the words of its error.
Ref gate_rules();

}  // namespace fxpress::serde
