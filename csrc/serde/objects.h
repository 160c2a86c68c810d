// Objects of torch's schema classes from documents, and what such objects say to a sink.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "py/object.h"
#include "schema/document.h"

namespace fxpress::serde {

// The classes of the schema's types. Their instances have their fields as attributes; unions have
// the one that is set, and its tag as `_type`: to ask for another is an AttributeError, as for
// those of torch, which hold a None for each.
class SchemaClasses {
 public:
  // classes: [class] in the order of the schema's types; enumerations: class -> {field: {int:
  // member of its enumeration}}; make_tag: (field, class) -> tag.
  SchemaClasses(const schema::Schema& schema, PyObject* classes, PyObject* enumerations,
                PyObject* make_tag);

  // The object for a value. Fields that are enumerations have ints, as in torch for what is read
  // from JSON; with `all_members` they have members. `kept`: what write_for_order() gave. The
  // garbage collector should be paused.
  Ref make(const schema::Document& document, const schema::Value& value, bool all_members,
           std::span<const Ref> kept = {}) const;

  // Sends the values of an object. TypeError for a value that is not of the schema's shape.
  // `Out`: DocumentBuilder or JsonWriter.
  template <class Out>
  void write(PyObject* object, Out& sink) const;
  // Sends the values that the canonical form depends on: no metadata of nodes, and for the facts
  // that graphs state about their values the numbers of copies, which are returned.
  std::vector<Ref> write_for_order(PyObject* object, schema::DocumentBuilder& sink) const;

 private:
  struct Class {
    Ref type;                       // the class
    std::vector<Ref> names;         // of its fields, interned
    std::vector<Ref> members;       // by field: int -> member of its enumeration, or empty
    std::vector<Ref> tags;          // union: by field
    std::vector<Py_hash_t> hashes;  // union: of the names
    std::vector<Ref> templates;     // large union: its __dict__ with that tag
  };
  class Maker;
  class Walk;
  class Copier;
  template <class Out>
  class Writer;

  static Ref new_union(const Class& info, size_t position, PyObject* value);
  uint16_t type_of(PyObject* object) const;

  const schema::Schema& schema_;
  std::vector<Class> classes_;                           // by type
  std::unordered_map<const PyTypeObject*, size_t> ids_;  // class -> type
};

}  // namespace fxpress::serde
