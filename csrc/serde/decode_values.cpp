#include "fx/symbols.h"
#include "py/calls.h"
#include "schema/extent.h"
#include "serde/graph_decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// The estimated sizes of Python objects, in bytes.
constexpr uint64_t kTensorBytes = 1200;
constexpr uint64_t kNumberBytes = 500;
constexpr uint32_t kMostDimensions = 64;  // the most that torch's operators support

}  // namespace

PyObject* GraphDecoder::value_of(Defined& defined, std::string_view name) {
  if (!defined.value) {
    if (defined.meta == nullptr) {
      raise(symbols.serialize_error, "the tables of the graph have no value named %R",
            new_text(name).get());
    }
    const core::ScopedValue current(document_, defined.document);
    defined.value = defined.table == Table::kTensor         ? tensor(*defined.meta)
                    : defined.table == Table::kCustomObject ? custom_object(*defined.meta)
                                                            : number(*defined.meta);
  }
  return defined.value.get();
}

Ref GraphDecoder::custom_object(const Value& record) {
  const Ref name = new_text(text_of(record, Field::CustomObjArgument_name));
  const Ref class_name = new_text(text_of(record, Field::CustomObjArgument_class_fqn));
  return call(symbols.custom_obj_argument_type, name, class_name);
}

// Returns an int, float, bool or symbolic number. Equal symbolic numbers share one object. An
// object that was created for a storage offset is shared only by storage offsets.
Ref GraphDecoder::number(const Value& value, Role role) {
  const Value& content = content_of(value);
  if (content.kind != ValueKind::kRecord) return scalar_of(content);
  const Value& expression = field(content, Field::SymExpr_expr_str);
  const Value& hint = field(content, Field::SymExpr_hint);
  std::string key(1, static_cast<char>('0' + value.type));
  Ref hint_value = Ref::borrow(Py_None);
  if (hint.kind == ValueKind::kUnion) {
    hint_value = scalar_of(content_of(hint));
    key += Text(Ref::steal(PyObject_Repr(hint_value.get())).get()).view();
  }
  key += ' ';
  key += text_of(expression);
  if (const auto known = numbers_.find(key); known != numbers_.end()) {
    return Ref::borrow(known->second.get());
  }
  const bool is_offset = role == Role::kOffset;
  if (is_offset) {
    key.insert(0, 1, ' ');  // no other key begins with a space
    if (const auto known = numbers_.find(key); known != numbers_.end()) {
      return Ref::borrow(known->second.get());
    }
  }
  charge(kNumberBytes + key.size());
  const Ref kind =
      Ref::steal(PyUnicode_FromString(document_->schema().type(value.type).name.c_str()));
  Ref made = call_method(values_.ptr(), fx::names.number, kind, new_text(text_of(expression)),
                         hint_value, is_offset ? Py_True : Py_False);
  return Ref::borrow(numbers_.emplace(std::move(key), std::move(made)).first->second.get());
}

Ref GraphDecoder::sizes(const Value& list) {
  const auto items = children_of(list);
  return make_tuple(items.size(), [&](size_t i) { return number(items[i]); });
}

GraphDecoder::Device& GraphDecoder::device_of(const Value& value) {
  const std::string_view type = text_of(value, Field::Device_type);
  const Value& stored = field(value, Field::Device_index);
  std::optional<int64_t> index;
  if (stored.kind == ValueKind::kInt) {
    index = stored.integer;
  } else if (stored.kind != ValueKind::kNull) {
    raise(symbols.serialize_error, "expected an int or null as the index of a device, found %R",
          scalar_of(stored).get());
  }
  for (Device& known : devices_) {
    if (known.index == index && known.type == type) return known;
  }
  Ref object = call_method(values_.ptr(), fx::names.device, new_text(type), scalar_of(stored));
  return devices_.emplace_back(std::string(type), index, std::move(object));
}

Ref GraphDecoder::from_table(const std::vector<Ref>& table, const Value& code,
                             const char* what) const {
  const auto position = static_cast<size_t>(code.integer);
  if (code.kind != ValueKind::kInt || position >= table.size() || !table[position]) {
    raise(symbols.serialize_error, "expected the code of a %s, found %R", what,
          scalar_of(code).get());
  }
  return Ref::borrow(table[position].get());
}

// Creates the fake tensor for a TensorMeta.
Ref GraphDecoder::tensor(const Value& meta) {
  charge(kTensorBytes);
  charge(field(meta, Field::TensorMeta_sizes).count, 2 * kSlotBytes);
  Device& device = device_of(field(meta, Field::TensorMeta_device));
  const Ref dtype = from_table(dtypes_, field(meta, Field::TensorMeta_dtype), "dtype");
  const Ref layout = from_table(layouts_, field(meta, Field::TensorMeta_layout), "layout");
  const bool grad = field(meta, Field::TensorMeta_requires_grad).integer != 0;
  const uint32_t dimensions = field(meta, Field::TensorMeta_sizes).count;
  if (dimensions > kMostDimensions) {
    raise(symbols.serialize_error, "expected at most %u dimensions of a tensor, found %u",
          kMostDimensions, dimensions);
  }
  if (!schema::is_countable(*document_, meta)) {
    raise(symbols.serialize_error,
          "a tensor's sizes, strides and offset: expected less than 2**59 elements");
  }
  const bool is_strided = layout.get() == symbols.strided;
  bool is_symbolic = false;
  const std::string key = key_of(meta, is_symbolic);
  if (is_strided) {
    if (const auto first = device.first.find(key); first != device.first.end()) {
      if (Ref made = fakes_of(device).like(first->second.get(), nullptr)) return made;
    }
  }
  const Value& offset = field(meta, Field::TensorMeta_storage_offset);
  const Ref shape = sizes(field(meta, Field::TensorMeta_sizes));
  const Ref strides = sizes(field(meta, Field::TensorMeta_strides));
  Ref made;
  if (is_strided && !is_symbolic && content_of(offset).integer == 0) {
    PyObject* arguments[] = {shape.get(), strides.get(), dtype.get(), symbols.meta_device};
    const Ref real = Ref::steal(
        PyObject_Vectorcall(symbols.empty_strided, arguments, 2, symbols.empty_strided_keywords));
    made = fakes_of(device).make(real.get(), grad);
  } else {
    made =
        call_method(values_.ptr(), fx::names.tensor, shape, strides, number(offset, Role::kOffset),
                    dtype, layout, device.object, grad ? Py_True : Py_False);
  }
  if (is_strided) device.first.emplace(key, Ref::borrow(made.get()));
  return made;
}

// Returns a key for the metadata of a tensor. Keys are equal if the metadata is equal and its
// symbolic numbers are the same objects. Sets `is_symbolic` if the metadata has a symbolic number.
std::string GraphDecoder::key_of(const Value& meta, bool& is_symbolic) {
  std::string key;
  const auto add = [&](int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  const auto add_number = [&](const Value& value, Role role) {
    const Value& content = content_of(value);
    const bool has_text = content.kind == ValueKind::kRecord;
    if (!has_text && content.kind != ValueKind::kInt) {
      raise(symbols.serialize_error, "a tensor has a size, stride or offset beyond 64 bits");
    }
    is_symbolic |= has_text;
    add(has_text ? 1 : 0);
    add(has_text ? reinterpret_cast<intptr_t>(number(value, role).get()) : content.integer);
  };
  for (const Field list : {Field::TensorMeta_sizes, Field::TensorMeta_strides}) {
    const auto items = children_of(meta, list);
    add(static_cast<int64_t>(items.size()));
    for (const Value& item : items) add_number(item, Role::kNumber);
  }
  add_number(field(meta, Field::TensorMeta_storage_offset), Role::kOffset);
  add(field(meta, Field::TensorMeta_dtype).integer);
  add(field(meta, Field::TensorMeta_requires_grad).integer);
  return key;
}

fx::FakeMaker& GraphDecoder::fakes_of(Device& device) {
  if (!device.fakes) {
    device.fakes.emplace(device.object.get(),
                         call_method(values_.ptr(), fx::names.fake_state, device.object));
  }
  return *device.fakes;
}

}  // namespace fxpress::serde
