// Converts documents into objects of torch's schema classes, and the objects into EventSink calls.
#pragma once

#include <span>
#include <unordered_map>
#include <vector>

#include "py/object.h"
#include "schema/document.h"

namespace fxpress::serde {

// torch's Python classes for the schema's types. A union object that fxpress creates stores the
// field that is set, and the field's name as `_type`. Reading another field raises AttributeError,
// as in torch. (torch's union objects also store None in the other fields.)
class SchemaClasses {
 public:
  // classes: [class] in schema order. enumerations: {class: {field: {int: enum member}}}.
  // make_tag(field, class) returns the value of `_type`.
  SchemaClasses(const schema::Schema& schema, PyObject* classes, PyObject* enumerations,
                PyObject* make_tag);

  // Creates the object for a value. An enum field gets an enum member if `all_members` is set, or
  // if it had a member when the document was made from an object. Otherwise it gets an int, as in
  // torch's reader of JSON. kept: the result of write_for_order(). The caller pauses the garbage
  // collector.
  Ref make(const schema::Document& document, const schema::Value& value, bool all_members,
           std::span<const Ref> kept = {}) const;

  // Writes the values of an object. TypeError if a value does not match the schema. `Out`:
  // DocumentBuilder or JsonWriter.
  template <class Out>
  void write(PyObject* object, Out& sink) const;
  // Writes the parts of an object on which its canonical form depends. Leaves out the metadata of
  // nodes. Writes each value in a graph's tables as an index in the returned list of copies.
  std::vector<Ref> write_for_order(PyObject* object, schema::DocumentBuilder& sink) const;

 private:
  struct Class {
    Ref type;                       // the class
    std::vector<Ref> names;         // names of its fields, interned
    std::vector<Ref> members;       // by field: {int: enum member}; empty if it is not an enum
    std::vector<Ref> tags;          // union: values of `_type`, by field
    std::vector<Py_hash_t> hashes;  // union: hashes of the names
    std::vector<Ref> templates;     // large union: by field, the __dict__ of an object
  };
  class Maker;
  class Walk;
  class Copier;
  template <class Out>
  class Writer;

  static Ref new_union(const Class& info, size_t position, PyObject* value);
  uint16_t type_of(PyObject* object) const;

  const schema::Schema& schema_;
  std::vector<Class> classes_;                           // by position of the type
  std::unordered_map<const PyTypeObject*, size_t> ids_;  // class -> position in classes_
};

}  // namespace fxpress::serde
