#include "serde/payloads.h"

#include <array>

#include "core/check.h"
#include "fx/symbols.h"
#include "py/containers.h"
#include "serde/encode_values.h"
#include "serde/errors.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

using schema::Document;
using schema::Value;
using schema::ValueKind;

void write_payload_config(Encoding& to, PyObject* entries) {
  SchemaWriter& out = to.out;
  EventSink& sink = out.sink();
  ValueEncoder values(to);
  const Ref held = Ref::steal(PySequence_Tuple(entries));
  out.record(Type::PayloadConfig, [&](Field) {
    sink.begin_map();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(held.get()); ++i) {
      PyObject* entry = PyTuple_GET_ITEM(held.get(), i);
      if (!PyTuple_Check(entry) || PyTuple_GET_SIZE(entry) != 5) {
        raise(PyExc_TypeError, "an entry of a config has five parts");
      }
      const auto part = [&](Py_ssize_t number) { return PyTuple_GET_ITEM(entry, number); };
      out.key(part(0));
      out.record(Type::PayloadMeta, [&](Field field) {
        switch (field) {
          case Field::PayloadMeta_path_name:
            return out.string(part(1));
          case Field::PayloadMeta_is_param:
            return sink.boolean(part(3) == Py_True);
          case Field::PayloadMeta_use_pickle:
            return sink.boolean(part(4) == Py_True);
          case Field::PayloadMeta_tensor_meta:
            return part(2) == Py_None ? sink.null() : values.tensor_meta(part(2));
          default:
            FXPRESS_CHECK(false, "the schema was compared before");
        }
      });
    }
    sink.end_map();
  });
}

namespace {

// Texts of a document that occur often: made once.
class LatestText {
 public:
  Ref get(std::string_view text) {
    if (!latest_ || text != text_) {
      latest_ = new_text(text);
      text_ = text;
    }
    return Ref::borrow(latest_.get());
  }

 private:
  std::string text_;
  Ref latest_;
};

Ref number(const Document& document, const Value& symbolic) {
  const Value& content = document.content(symbolic);
  if (content.kind != ValueKind::kInt) {
    raise(damage_error(), "a stored tensor has a symbolic size");
  }
  return Ref::steal(PyLong_FromLongLong(content.integer));
}

Ref numbers(const Document& document, const Value& list) {
  const auto items = document.children(list);
  Ref result = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i),
                     number(document, items[i]).release());
  }
  return result;
}

Ref truth(const Value& value) {
  return Ref::borrow(value.integer != 0 ? Py_True : Py_False);
}

Ref tensor_meta(const Document& document, const Value& meta, LatestText& device_names) {
  if (meta.kind == ValueKind::kNull) return Ref::borrow(Py_None);
  const Value& device = document.field(meta, Field::TensorMeta_device);
  std::array<Ref, 7> parts = {
      scalar(document, document.field(meta, Field::TensorMeta_dtype)),
      numbers(document, document.field(meta, Field::TensorMeta_sizes)),
      numbers(document, document.field(meta, Field::TensorMeta_strides)),
      number(document, document.field(meta, Field::TensorMeta_storage_offset)),
      truth(document.field(meta, Field::TensorMeta_requires_grad)),
      device_names.get(document.text(document.field(device, Field::Device_type))),
      scalar(document, document.field(device, Field::Device_index)),
  };
  return take_as_tuple(parts);
}

}  // namespace

Ref read_payload_config(const Document& document) {
  const auto entries =
      document.children(document.field(document.root(), Field::PayloadConfig_config));
  Ref result = Ref::steal(PyList_New(0));
  LatestText devices;
  for (size_t i = 0; i + 1 < entries.size(); i += 2) {
    const Value& meta = entries[i + 1];
    std::array<Ref, 5> parts = {
        new_text(document.text(entries[i])),
        new_text(document.text(document.field(meta, Field::PayloadMeta_path_name))),
        truth(document.field(meta, Field::PayloadMeta_is_param)),
        truth(document.field(meta, Field::PayloadMeta_use_pickle)),
        tensor_meta(document, document.field(meta, Field::PayloadMeta_tensor_meta), devices),
    };
    check(PyList_Append(result.get(), take_as_tuple(parts).get()));
  }
  return result;
}

}  // namespace fxpress::serde
