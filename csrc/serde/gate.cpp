#include "serde/gate.h"

#include <string>

#include "schema/gate.h"
#include "serde/errors.h"
#include "serde/scalars.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

using schema::Rule;

namespace {

constexpr size_t kShown = 120;  // bytes of a value that an error shows

bool is_unicode_identifier(std::string_view text) {
  return PyUnicode_IsIdentifier(new_text(text).get()) == 1;
}

// The beginning of a text, which ends where a character does.
Ref beginning(std::string_view text, size_t size) {
  const bool is_short = text.size() <= size;
  while (!is_short && size > 0 && (static_cast<unsigned char>(text[size]) & 0xc0u) == 0x80u) --size;
  std::string shown(text.substr(0, size));
  if (!is_short) shown += "...";
  return new_text(shown);
}

Rule known_rule(std::string_view name) {
  const Rule rule = schema::rule_named(name);
  if (rule == Rule::kNone) raise(PyExc_KeyError, "%s", std::string(name).c_str());
  return rule;
}

}  // namespace

void pass_gate(schema::Document& document) {
  if (document.has_passed()) return;
  try {
    schema::pass_gate(document, is_unicode_identifier);
  } catch (const schema::GateError& error) {
    raise(damage_error(), "%U: %R %s", beginning(error.path(), 4 * kShown).get(),
          beginning(error.value(), kShown).get(), error.fault());
  }
  document.set_passed();
}

bool passes_gate(std::string_view rule, PyObject* text) {
  return schema::passes(known_rule(rule), Text(text).view(), is_unicode_identifier);
}

Ref first_refused(std::string_view rule, PyObject* texts) {
  const Rule known = known_rule(rule);
  const Ref items = Ref::steal(PySequence_Tuple(texts));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyTuple_GET_ITEM(items.get(), i);
    if (PyUnicode_Check(item) && schema::passes(known, Text(item).view(), is_unicode_identifier)) {
      continue;
    }
    return Ref::borrow(item);
  }
  return Ref::borrow(Py_None);
}

Ref gate_rules() {
  Ref result = Ref::steal(PyDict_New());
  for (size_t i = 1; i < static_cast<size_t>(Rule::kCount); ++i) {
    const auto rule = static_cast<Rule>(i);
    const Ref fault = Ref::steal(PyUnicode_FromString(schema::fault_of(rule)));
    const Ref name = new_text(schema::name_of(rule));
    check(PyDict_SetItem(result.get(), name.get(), fault.get()));
  }
  return result;
}

}  // namespace fxpress::serde
