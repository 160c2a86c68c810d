// Defines Document: a program, or another value of torch's serialization schema, as a tree in flat
// arrays. Documents are read from JSON, hashed, and converted to Python objects.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/growing_array.h"
#include "schema/schema.h"

namespace fxpress::schema {

// Receives the values of a program in order. JsonWriter writes them as JSON, and DocumentBuilder
// builds a document.
//
// For a record, union, list or map, the caller calls begin_*(), passes the contents, and calls
// end_*(). Any other value is one call. The fields of a record are passed in the order of the
// schema: for each field, field(position) and then the value.
class EventSink {
 public:
  virtual ~EventSink() = default;

  virtual void begin_record(const TypeInfo& type) = 0;
  virtual void field(size_t position) = 0;
  virtual void end_record() = 0;
  // position: which field of the union is set. The value of this field follows.
  virtual void begin_union(const TypeInfo& type, size_t position) = 0;
  virtual void end_union() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void begin_map() = 0;
  virtual void key(std::string_view key) = 0;
  virtual void end_map() = 0;

  // `text` is UTF-8, but may contain encoded lone surrogates, which strict UTF-8 forbids.
  virtual void string(std::string_view text) = 0;
  virtual void integer(int64_t value) = 0;
  virtual void big_integer(std::string_view digits) = 0;  // decimal, beyond 64 bits
  virtual void real(double value) = 0;
  virtual void boolean(bool value) = 0;
  virtual void null() = 0;
};

enum class ValueKind : uint8_t {
  kNull,
  kBool,
  kInt,
  kBigInt,
  kReal,
  kString,
  kKept,  // see DocumentBuilder::kept()
  kList,
  kMap,
  kRecord,
  kUnion
};

struct Value {
  ValueKind kind = ValueKind::kNull;
  uint16_t type = 0;  // record, union: position of its type in the schema
  // String, big integer: number of bytes. Record: number of fields. List: number of items. Map:
  // number of keys plus values. Union: position of the field that is set. Int: 1 for enum members.
  uint32_t count = 0;
  union {
    int64_t integer = 0;  // bool, int
    double real;
    // String, big integer: offset in Document::text_. kKept: argument of DocumentBuilder::kept().
    // List, map, record, union: index of the first child in Document::values_.
    uint64_t place;
  };
};

class Document {
 public:
  explicit Document(const Schema& schema) : schema_(&schema) {}

  const Schema& schema() const { return *schema_; }
  const Value& root() const { return root_; }
  size_t bytes() const { return values_.size() * sizeof(Value) + text_.size(); }

  std::string_view text(const Value& value) const {
    return {text_.data() + value.place, value.count};
  }
  // Returns the contained values: items of a list, fields of a record in order, keys and values of
  // a map alternately, the value of a union.
  std::span<const Value> children(const Value& value) const {
    return {values_.data() + value.place, value.kind == ValueKind::kUnion ? 1 : value.count};
  }
  // Returns the value of a record's field. The schema must have this field.
  const Value& field(const Value& record, Field field) const {
    return values_[record.place + static_cast<uint64_t>(schema_->place(field))];
  }
  // Returns which field of a union is set; kUnknown if schema.def does not have the field.
  Field tag(const Value& value) const { return schema_->type(value.type).fields[value.count].id; }
  const Value& content(const Value& value) const { return values_[value.place]; }

  // Whether pass_gate() (gate.h) has accepted all texts.
  bool has_passed() const { return has_passed_; }
  void set_passed() { has_passed_ = true; }

 private:
  friend class DocumentBuilder;

  const Schema* schema_;              // outlives the document
  core::GrowingArray<Value> values_;  // all values but the root
  core::GrowingArray<char> text_;     // all strings, concatenated
  Value root_;                        // the outermost value
  bool has_passed_ = false;
};

class DocumentBuilder final : public EventSink {
 public:
  explicit DocumentBuilder(const Schema& schema) : document_(schema) {}
  // Starts with a copy of `base`. reuse() adds a value of `base` without changes.
  explicit DocumentBuilder(const Document& base) : document_(base) {}
  void reuse(const Value& value) { add(value); }
  // Adds a placeholder for a value that the caller stores outside the document under `number`.
  void kept(size_t number) { add({.kind = ValueKind::kKept, .place = number}); }
  // Adds an integer that a Python object of the schema stores as an enum member.
  void member(int64_t value) { add_integer(ValueKind::kInt, value, 1); }
  // Reserves memory for `values` values and for `text` bytes of strings.
  void reserve(size_t values, size_t text);

  // Returns the document; exactly one value must have been built.
  Document finish();

  void begin_record(const TypeInfo& type) override {
    open(ValueKind::kRecord, type, 0, type.fields.size());
  }
  void field(size_t position) override { levels_.back().field = static_cast<uint32_t>(position); }
  void end_record() override;
  void begin_union(const TypeInfo& type, size_t position) override {
    open(ValueKind::kUnion, type, static_cast<uint32_t>(position), 1);
  }
  void end_union() override { close(levels_.back().field); }
  void begin_list() override { open(ValueKind::kList); }
  void end_list() override { close(); }
  void begin_map() override { open(ValueKind::kMap); }
  void key(std::string_view key) override { add(make_text(ValueKind::kString, key)); }
  void end_map() override { close(); }
  void string(std::string_view text) override { add(make_text(ValueKind::kString, text)); }
  void integer(int64_t value) override { add_integer(ValueKind::kInt, value); }
  void big_integer(std::string_view digits) override { add(make_text(ValueKind::kBigInt, digits)); }
  void real(double value) override { add({.kind = ValueKind::kReal, .real = value}); }
  void boolean(bool value) override { add_integer(ValueKind::kBool, value ? 1 : 0); }
  void null() override { add(Value()); }

  // Whether the open record already has a value for the field at `position`.
  bool has_field(size_t position) const;

 private:
  static constexpr auto kUnset = static_cast<ValueKind>(255);  // a field without a value yet
  struct Level {
    ValueKind kind;  // record, union, list or map
    uint16_t type;   // record, union: position of its type in the schema
    uint32_t field;  // record: field of the next value; union: the field that is set
    size_t start;    // where its values start: in document_ (record, union) or in pending_
  };
  void add(const Value& value);
  void add_integer(ValueKind kind, int64_t value, uint32_t count = 0) {
    add({.kind = kind, .count = count, .integer = value});
  }
  Value make_text(ValueKind kind, std::string_view text);
  void open(ValueKind kind, const TypeInfo& type, uint32_t field, size_t size);
  void open(ValueKind kind);
  void close(uint32_t count);
  void close();

  Document document_;           // the finished values
  std::vector<Value> pending_;  // the values contained in open lists and maps, and the root
  std::vector<Level> levels_;   // the records, unions, lists and maps that are open
};

// Returns the targets of all nodes of a program and its subgraphs, sorted, without duplicates.
std::vector<std::string_view> targets_of(const Document& program);

}  // namespace fxpress::schema
