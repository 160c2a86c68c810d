// Writes JSON as Python's json module does with default settings, into one growing buffer.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "schema/document.h"

namespace fxpress::schema {

// A growing array of bytes, whose memory the derived class allocates.
class Buffer {
 public:
  virtual ~Buffer() = default;
  void append(std::string_view text);
  // Returns space for `size` more bytes. The caller writes there, and then calls advance().
  char* reserve(size_t size);
  void advance(size_t size) { size_ += size; }
  size_t size() const { return size_; }

 protected:
  // Allocates at least `capacity` bytes; sets data_ and capacity_.
  virtual void grow(size_t capacity) = 0;

  char* data_ = nullptr;  // the memory
  size_t size_ = 0;       // bytes written
  size_t capacity_ = 0;   // bytes allocated
};

class StringBuffer : public Buffer {
 public:
  std::string_view text() const { return {data_, size_}; }

 private:
  void grow(size_t capacity) override;
  std::string memory_;  // the bytes at data_
};

// Writes a text in quotes, with escapes for all characters but printable ASCII.
void write_json_string(Buffer& out, std::string_view text);
// Writes a number like Python's repr(), or "NaN", "Infinity" or "-Infinity" in quotes.
void write_json_real(Buffer& out, double value);
void write_json_integer(Buffer& out, int64_t value);

class JsonWriter final : public EventSink {
 public:
  explicit JsonWriter(Buffer& out) : out_(out) {}

  void begin_record(const TypeInfo& type) override { open({&type, false, true}, '{'); }
  void field(size_t position) override;
  void end_record() override { close('}'); }
  void begin_union(const TypeInfo& type, size_t position) override;
  void end_union() override { close('}'); }
  void begin_list() override { open({nullptr, true, true}, '['); }
  void end_list() override { close(']'); }
  void begin_map() override { open({nullptr, false, true}, '{'); }
  void key(std::string_view key) override;
  void end_map() override { close('}'); }
  void string(std::string_view text) override { write_json_string(separate(), text); }
  void integer(int64_t value) override { write_json_integer(separate(), value); }
  void big_integer(std::string_view digits) override { separate().append(digits); }
  void real(double value) override { write_json_real(separate(), value); }
  void boolean(bool value) override { separate().append(value ? "true" : "false"); }
  void null() override { separate().append("null"); }

 private:
  struct Level {
    const TypeInfo* type;  // type of an open record or union, else null
    bool list;             // whether the open value is a list
    bool first;            // whether no item or field is written yet
  };
  // Writes the comma that separates a list item from the previous item. Returns out_.
  Buffer& separate();
  void add_comma();
  void open(Level level, char bracket);
  void close(char bracket);

  Buffer& out_;                // receives the JSON text
  std::vector<Level> levels_;  // the open values
};

}  // namespace fxpress::schema
