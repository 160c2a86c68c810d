// Describes the types of torch's serialization schema: their fields in order, with declared types
// (shapes). Does not need Python or torch; python/fxpress/_files/serde/schema.py passes the types.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fxpress::schema {

// The types of schema.def. A schema may have more types, at positions after these.
enum class Type : uint16_t {
#define FXPRESS_TYPE(name) name,
#define FXPRESS_FIELD(type, name, rule)
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
  kCount
};

enum class Field : uint16_t {
#define FXPRESS_TYPE(name)
#define FXPRESS_FIELD(type, name, rule) type##_##name,
#include "schema/schema.def"
#undef FXPRESS_FIELD
#undef FXPRESS_TYPE
  kUnknown  // a field that is not in schema.def: a later torch has added it
};
inline constexpr size_t kFields = static_cast<size_t>(Field::kUnknown);

// The rules for texts of a file; gate.h applies them.
enum class Rule : uint8_t {
#define FXPRESS_RULE(name, fault) name,
#include "schema/gate_rules.def"
#undef FXPRESS_RULE
  kCount
};

enum class Kind : uint8_t { kBool, kInt, kFloat, kString, kOptional, kList, kMap, kRecord, kUnion };

// The declared type of a value, such as a list of ints.
struct Shape {
  Kind kind;
  uint16_t of;  // optional, list, map: the shape of the contents; record, union: the type
};

struct FieldInfo {
  Field id;                   // kUnknown in types that are not in schema.def
  uint16_t shape;             // position in Schema::shapes_
  bool required;              // has no default
  Rule rule;                  // gate rule for its texts; see schema.def
  bool has_text;              // its values may contain texts
  std::string name;           // name in files
  std::string key;            // JSON: the name in quotes, and ": "
  std::string default_value;  // JSON text, if not required
};

struct TypeInfo {
  std::string name;
  bool is_union = false;
  std::vector<FieldInfo> fields;  // in the order in which they are written

  // Returns the position of the field with this name, or -1.
  int find(std::string_view field) const;
};

// Thrown for a schema that cannot be used; what() names what is missing or unknown.
class SchemaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Schema {
 public:
  // A field of a new schema. Shapes are written as in torch's schema: "int", "float", "bool",
  // "str", "optional X", "list X", "map X", or the name of a type.
  struct NewField {
    std::string name;           // name in files
    std::string shape;          // such as "optional list int"
    bool required;              // has no default
    std::string default_value;  // JSON text, if not required
  };
  struct NewType {
    std::string name;              // name of the record or union
    bool is_union;                 // exactly one of its fields is set
    std::vector<NewField> fields;  // in the order in which they are written
  };

  // Throws SchemaError if a type of schema.def is missing, a shape is unknown, or a field with
  // texts has no rule.
  explicit Schema(std::span<const NewType> types);

  size_t size() const { return types_.size(); }  // the types of schema.def are first
  const TypeInfo& type(uint16_t type) const { return types_[type]; }
  const TypeInfo& type(Type type) const { return types_[static_cast<size_t>(type)]; }
  Shape shape(uint16_t shape) const { return shapes_[shape]; }
  // Whether values of a schema shape may contain strings.
  bool has_text(uint16_t shape) const { return has_text_[shape]; }
  // Whether values of a schema shape are strings, lists of strings, or maps of any values.
  bool is_text(uint16_t shape) const;

  // Returns the position of the type with this name, or -1.
  int find(std::string_view type) const;
  // Returns the position of a field of schema.def in its type, or -1 if this torch lacks the field.
  int place(Field field) const { return places_[static_cast<size_t>(field)]; }
  // Returns the name of a record's field that only torch or only schema.def has; empty if there is
  // none. Writing such a record would lose data. Unions are checked when they are written.
  const std::string& difference() const { return difference_; }
  static Type owner(Field field);

 private:
  void compare();
  void find_texts();
  void check_rules() const;
  uint16_t parse_shape(std::string_view text);
  uint16_t add_shape(Shape shape);

  std::vector<TypeInfo> types_;                        // types, by position
  std::vector<Shape> shapes_;                          // the distinct shapes
  std::vector<bool> has_text_;                         // see has_text(); by shape
  std::unordered_map<std::string, uint16_t> by_name_;  // name of a type -> position
  std::array<int, kFields> places_;                    // by Field; see place()
  std::string difference_;                             // see difference()
};

}  // namespace fxpress::schema
