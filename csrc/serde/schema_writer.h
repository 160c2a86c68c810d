// Writes records, unions and lists of the schema to a sink.
#pragma once

#include "py/calls.h"
#include "py/object.h"
#include "schema/document.h"
#include "schema/schema.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using schema::EventSink;
using schema::Field;
using schema::Schema;
using schema::Type;

class SchemaWriter {
 public:
  SchemaWriter(const Schema& schema, EventSink& sink) : schema_(schema), sink_(sink) {}

  const Schema& schema() const { return schema_; }

  // Calls write(field) for each field of a record, in schema order.
  template <class F>
  void record(Type type, F&& write) {
    const auto& info = schema_.type(type);
    sink_.begin_record(info);
    for (size_t i = 0; i < info.fields.size(); ++i) {
      sink_.field(i);
      write(info.fields[i].id);
    }
    sink_.end_record();
  }
  // Writes a union with this field set; write() writes its value.
  template <class F>
  void choice(Field field, F&& write) {
    open_union(field);
    write();
    sink_.end_union();
  }
  // Writes a list; write(item) is called for each item of a list or tuple.
  template <class F>
  void list(PyObject* items, F&& write) {
    sink_.begin_list();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
      write(PySequence_Fast_GET_ITEM(items, i));
    }
    sink_.end_list();
  }
  // Writes a map; write(value) is called for each value of a dict with str keys.
  template <class F>
  void map(PyObject* dict, F&& write) {
    sink_.begin_map();
    for (const auto& [key, value] : DictRange(dict)) {
      this->key(key);
      write(value);
    }
    sink_.end_map();
  }

  void string(PyObject* text) { sink_.string(Text(text).view()); }
  void key(PyObject* text) { sink_.key(Text(text).view()); }
  void integer(PyObject* value) { write_integer(value, sink_); }
  // Writes a list with the texts of any sequence.
  void strings(PyObject* sequence) {
    const Ref held = Ref::steal(PySequence_Tuple(sequence));
    list(held.get(), [&](PyObject* text) { string(text); });
  }

 private:
  void open_union(Field field) {
    const int position = schema_.place(field);
    const auto& info = schema_.type(Schema::owner(field));
    if (position < 0) {
      raise(symbols.unsupported_error,
            "the schema of this torch cannot represent the %s of this graph", info.name.c_str());
    }
    sink_.begin_union(info, static_cast<size_t>(position));
  }

  const Schema& schema_;
  EventSink& sink_;
};

}  // namespace fxpress::serde
