#include "serde/schema_writer.h"

#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

void SchemaWriter::open_union(Field field) {
  const int place = schema_.place(field);
  const auto& info = schema_.type(Schema::owner(field));
  if (place < 0) {
    raise(symbols.unsupported_error,
          "the %s of this graph has no place in the schema of this torch", info.name.c_str());
  }
  sink_.begin_union(info, static_cast<size_t>(place));
}

void SchemaWriter::string(PyObject* text) {
  sink_.string(Text(text).view());
}

void SchemaWriter::key(PyObject* text) {
  sink_.key(Text(text).view());
}

void SchemaWriter::integer(PyObject* value) {
  write_integer(value, sink_);
}

void SchemaWriter::strings(PyObject* sequence) {
  const Ref held = Ref::steal(PySequence_Tuple(sequence));
  list(held.get(), [&](PyObject* text) { string(text); });
}

void SchemaWriter::name_record(Type type, Field field, PyObject* name) {
  record(type, [&](Field at) {
    if (at == field) string(name);
  });
}

}  // namespace fxpress::serde
