// Sends a value of a document to a sink, the inverse of reading it.
#pragma once

#include <span>

#include "core/budget.h"
#include "core/check.h"
#include "schema/document.h"

namespace fxpress::schema {

inline void write_value(const Document& document, const Value& value, EventSink& sink) {
  core::check_stack("nested values");
  const std::span<const Value> inside =
      value.kind >= ValueKind::kList ? document.children(value) : std::span<const Value>();
  switch (value.kind) {
    case ValueKind::kNull:
      return sink.null();
    case ValueKind::kBool:
      return sink.boolean(value.integer != 0);
    case ValueKind::kInt:
      return sink.integer(value.integer);
    case ValueKind::kBigInt:
      return sink.big_integer(document.text(value));
    case ValueKind::kReal:
      return sink.real(value.real);
    case ValueKind::kString:
      return sink.string(document.text(value));
    case ValueKind::kList:
      sink.begin_list();
      for (const Value& item : inside) write_value(document, item, sink);
      return sink.end_list();
    case ValueKind::kMap:
      sink.begin_map();
      for (size_t i = 0; i < inside.size(); i += 2) {
        sink.key(document.text(inside[i]));
        write_value(document, inside[i + 1], sink);
      }
      return sink.end_map();
    case ValueKind::kRecord:
      sink.begin_record(document.schema().type(value.type));
      for (size_t i = 0; i < inside.size(); ++i) {
        sink.field(i);
        write_value(document, inside[i], sink);
      }
      return sink.end_record();
    case ValueKind::kUnion:
      sink.begin_union(document.schema().type(value.type), value.count);
      write_value(document, inside[0], sink);
      return sink.end_union();
    case ValueKind::kKept:
      break;
  }
  FXPRESS_CHECK(false, "a value is kept elsewhere");
}

}  // namespace fxpress::schema
