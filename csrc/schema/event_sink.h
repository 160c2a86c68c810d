// The target of an encoded program: JSON text (json_writer.h) or a typed tree (document.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "schema/schema.h"

namespace fxpress::schema {

// A value is one call, or one begin, its contents, and the end. Every field of a record is written
// in the order of the schema: field(position), then its value.
class EventSink {
 public:
  virtual ~EventSink() = default;

  virtual void begin_record(const TypeInfo& type) = 0;
  virtual void field(size_t position) = 0;
  virtual void end_record() = 0;
  // The one field of a union that is set, then its value.
  virtual void begin_union(const TypeInfo& type, size_t position) = 0;
  virtual void end_union() = 0;
  virtual void begin_list() = 0;
  virtual void end_list() = 0;
  virtual void begin_map() = 0;
  virtual void key(std::string_view key) = 0;
  virtual void end_map() = 0;

  // Text is UTF-8; lone surrogates are encoded as if they were characters.
  virtual void string(std::string_view text) = 0;
  virtual void integer(int64_t value) = 0;
  virtual void big_integer(std::string_view digits) = 0;  // decimal, beyond 64 bits
  virtual void real(double value) = 0;
  virtual void boolean(bool value) = 0;
  virtual void null() = 0;
};

}  // namespace fxpress::schema
