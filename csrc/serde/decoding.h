// The decoders of one file share this context: the document at work, what they ask of Python, and
// the budget.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/budget.h"
#include "py/object.h"
#include "schema/document.h"
#include "schema/names_in.h"
#include "serde/objects.h"
#include "serde/scalars.h"
#include "serde/targets.h"

namespace fxpress::serde {

using schema::Document;
using schema::Field;
using schema::Type;
using schema::Value;
using schema::ValueKind;

// The objects that decoding uses. All are borrowed; `values` is a fxpress._files.serde.values.Values.
struct DecodeContext {
  PyObject* values;              // number(), tensor(), fake_state(), begin_graph(), ...
  PyObject* constants;           // dict: what literal objects of the graph are
  const SchemaClasses* classes;  // to show a node that cannot be read
  core::Budget* budget;          // what all of it may cost
};

// Objects take about so many bytes. They are charged before they are made, so that a small file
// cannot fill the memory.
inline constexpr uint64_t kNodeBytes = 1200;
inline constexpr uint64_t kDictBytes = 240;
inline constexpr uint64_t kSlotBytes = 64;  // an item of a list or dict, a number or a text

struct Decoding {
  DecodeContext context;               // what the caller gave
  const Document* document = nullptr;  // that is read; outlives the decoders
  TargetTable targets = {};            // of nodes, and of operators among the arguments
  Ref signature = {};                  // of the program, once it is known

  const Value& field(const Value& record, Field name) const {
    return document->field(record, name);
  }
  const Value& content(const Value& value) const { return document->content(value); }
  std::span<const Value> children(const Value& value) const { return document->children(value); }
  Field tag(const Value& value) const { return document->tag(value); }
  std::string_view text(const Value& value) const { return document->text(value); }
  std::string_view text(const Value& record, Field name) const { return text(field(record, name)); }
  Ref scalar(const Value& value) const { return serde::scalar(*document, value); }

  // The name of a single result; none when it is a constant, or a list.
  std::optional<std::string_view> name_in(const Value& result) const {
    const std::string_view name =
        schema::name_of(*document, is_argument(result) ? content(result) : result);
    if (name.empty()) return std::nullopt;
    return name;
  }
  static bool is_argument(const Value& value) {
    return value.kind == ValueKind::kUnion && value.type == static_cast<uint16_t>(Type::Argument);
  }

  void charge(uint64_t bytes) const { context.budget->charge(bytes); }
  void charge(uint64_t count, uint64_t each) const { context.budget->charge(count, each); }
};

// The keys of a dict by the numbers that are its values; empty where there is none.
std::vector<Ref> by_number(PyObject* table);

}  // namespace fxpress::serde
