// The types of torch's serialization schema as tables: which fields, in which order, of which
// shape. Knows neither Python nor torch; python/fxpress/_serde/schema.py fills it in.
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

// Types with code; a schema may have more, which have positions after these.
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
  kUnknown  // of a type with code: a later torch has added it
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

// The shape of a value: its kind, and what it contains.
struct Shape {
  Kind kind;
  uint16_t of;  // optional, list, map: the shape of what is in it; record, union: the type
};

struct FieldInfo {
  Field id;                   // kUnknown in types without code
  uint16_t shape;             // position in Schema::shapes
  bool required;              // no default
  Rule rule;                  // that its texts have to pass; see schema.def
  bool has_text;              // its values may have texts in them
  std::string name;           // as in the file
  std::string key;            // quoted, with ": " behind it
  std::string default_value;  // JSON, when not required
};

struct TypeInfo {
  std::string name;
  bool is_union = false;
  std::vector<FieldInfo> fields;  // in the order in which they are written

  // The position of the field with this name, or -1.
  int find(std::string_view field) const;
};

// A schema that cannot be used: says what is missing or what is not known.
class SchemaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Schema {
 public:
  // A field as it is announced. Shapes are written as in the schema: "int", "float", "bool", "str",
  // "optional X", "list X", "map X", or the name of a type.
  struct NewField {
    std::string name;           // as in the file
    std::string shape;          // see above
    bool required;              // no default
    std::string default_value;  // JSON, when not required
  };
  struct NewType {
    std::string name;              // of the record or union
    bool is_union;                 // exactly one of its fields is set
    std::vector<NewField> fields;  // in the order in which they are written
  };

  // Throws SchemaError when a type with code is missing, a shape is not known, or a field with
  // texts has no rule.
  explicit Schema(std::span<const NewType> types);

  size_t size() const { return types_.size(); }  // types, those with code first
  const TypeInfo& type(uint16_t type) const { return types_[type]; }
  const TypeInfo& type(Type type) const { return types_[static_cast<size_t>(type)]; }
  Shape shape(uint16_t shape) const { return shapes_[shape]; }
  // Whether values of a shape may have texts in them.
  bool has_text(uint16_t shape) const { return has_text_[shape]; }
  // Whether they are texts, or lists or maps of texts, or maps with other values.
  bool is_text(uint16_t shape) const;

  // The position of the type with this name, or -1.
  int find(std::string_view type) const;
  // The position of a known field in its type, or -1 when this torch does not have it.
  int place(Field field) const { return places_[static_cast<size_t>(field)]; }
  // A field of a record that the native code does not know, or misses: to write the record would
  // lose something. Empty when there is none; kinds of unions are looked up when they are written.
  const std::string& difference() const { return difference_; }
  // The type that a known field belongs to.
  static Type owner(Field field);

 private:
  void compare();
  void find_texts();
  void check_rules() const;
  uint16_t parse_shape(std::string_view text);
  uint16_t add_shape(Shape shape);

  std::vector<TypeInfo> types_;                        // by position
  std::vector<Shape> shapes_;                          // each once
  std::vector<bool> has_text_;                         // by shape
  std::unordered_map<std::string, uint16_t> by_name_;  // positions of types
  std::array<int, kFields> places_;                    // by Field
  std::string difference_;                             // see difference()
};

}  // namespace fxpress::schema
