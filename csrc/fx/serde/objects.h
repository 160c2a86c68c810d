// Objects of torch's schema classes from documents, and what such objects say to a sink.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "fx/py.h"
#include "serde/document.h"

namespace fxpress::fx::serde {

// The classes of the schema's types. Their instances have all fields as attributes, and unions
// their tag as `_type`.
class SchemaClasses {
 public:
  // classes: [class] in the order of the schema's types; make_tag: (field, class) -> tag.
  SchemaClasses(const ::fxpress::serde::Schema& schema, PyObject* classes, PyObject* make_tag);

  // The object for a value. The garbage collector should be paused.
  Ref make(const ::fxpress::serde::Document& document, const ::fxpress::serde::Value& value) const;

  // Sends what an object holds. TypeError for a value that is not of the schema's shape.
  // `metadata`: with what nodes have of it, else without.
  // `Out`: DocumentBuilder or JsonWriter.
  template <class Out>
  void write(PyObject* object, Out& sink, bool metadata = true) const;

 private:
  struct Class {
    Ref type;                    // the class
    std::vector<Ref> names;      // of its fields, interned
    std::vector<Ref> tags;       // union: by field
    std::vector<Ref> templates;  // large union: its __dict__ with that tag, all fields None
  };
  class Maker;
  template <class Out>
  class Writer;

  const ::fxpress::serde::Schema& schema_;
  std::vector<Class> classes_;                           // by type
  std::unordered_map<const PyTypeObject*, size_t> ids_;  // class -> type
};

}  // namespace fxpress::fx::serde
