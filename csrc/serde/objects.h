// Converts documents into objects of torch's schema classes, and such objects into events.
#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "py/object.h"
#include "schema/document.h"

namespace fxpress::serde {

// The classes of the schema's types. Instances have their fields as attributes. A union has the
// field that is set, and its name as the tag `_type`; another field is an AttributeError, as in
// torch's classes, which store None for each.
class SchemaClasses {
 public:
  // classes: [class] in schema order; enumerations: class -> {field: {int: enum member}}; make_tag:
  // (field, class) -> tag.
  SchemaClasses(const schema::Schema& schema, PyObject* classes, PyObject* enumerations,
                PyObject* make_tag);

  // Creates the object for a value. Enum fields contain ints, as torch reads them from JSON; with
  // `all_members` they contain members. `kept`: the result of write_for_order(). The garbage
  // collector should be paused.
  Ref make(const schema::Document& document, const schema::Value& value, bool all_members,
           std::span<const Ref> kept = {}) const;

  // Writes the values of an object. TypeError if a value does not match the schema. `Out`:
  // DocumentBuilder or JsonWriter.
  template <class Out>
  void write(PyObject* object, Out& sink) const;
  // Writes the values that the canonical form depends on: no metadata of nodes, and for each
  // value's facts the number of a copy. Returns the copies.
  std::vector<Ref> write_for_order(PyObject* object, schema::DocumentBuilder& sink) const;

 private:
  struct Class {
    Ref type;                       // the class
    std::vector<Ref> names;         // of its fields, interned
    std::vector<Ref> members;       // by field: int -> member of its enumeration, or empty
    std::vector<Ref> tags;          // union: by field
    std::vector<Py_hash_t> hashes;  // union: of the names
    std::vector<Ref> templates;     // large union: its __dict__ by tag
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
