// Objects of torch's schema classes from documents, and what such objects say to a sink.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "fx/py.h"
#include "serde/document.h"

namespace fxpress::fx::serde {

// The classes of the schema's types. Their instances keep all fields in `__dict__`, and unions
// their tag under `_type`.
class SchemaClasses {
 public:
  // classes: [class] in the order of the schema's types; make_tag: (field, class) -> tag.
  SchemaClasses(const ::fxpress::serde::Schema& schema, PyObject* classes, PyObject* make_tag);

  // The object for a value. The garbage collector should be paused.
  Ref make(const ::fxpress::serde::Document& document, const ::fxpress::serde::Value& value) const;

  // Sends what an object, or a list or dict of objects, holds. TypeError for what JSON has no
  // place for, and for a union that no field of is set.
  // `metadata`: with what nodes have of it, else without.
  void write(PyObject* object, ::fxpress::serde::Sink& sink, bool metadata = true) const;

 private:
  struct Class {
    Ref type;                    // the class
    std::vector<Ref> names;      // of its fields, interned
    std::vector<Ref> templates;  // union: its __dict__ with this field's tag, all fields None;
                                 // record: one, without values
    std::vector<Ref> tags;       // union: by field
  };
  Ref make_instance(const Class& info, Ref dict) const;
  void write_instance(const Class& info, size_t type, PyObject* object,
                      ::fxpress::serde::Sink& sink, bool metadata) const;

  const ::fxpress::serde::Schema& schema_;
  std::vector<Class> classes_;                           // by type
  std::unordered_map<const PyTypeObject*, size_t> ids_;  // class -> type
};

}  // namespace fxpress::fx::serde
