#include "fx/symbols.h"
#include "py/calls.h"
#include "schema/extent.h"
#include "serde/graph_decoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// The estimated bytes of Python objects.
constexpr uint64_t kTensorBytes = 1200;
constexpr uint64_t kNumberBytes = 500;
constexpr uint32_t kMostDimensions = 64;  // limit of torch's operators

}  // namespace

PyObject* GraphDecoder::value_of(Defined& defined, std::string_view name) {
  if (!defined.value) {
    if (defined.meta == nullptr) {
      raise(symbols.serialize_error, "the tables of the graph have no value named %R",
            new_text(name).get());
    }
    const Reading reading(*this, *defined.document);
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

// Returns an int, float, bool or symbolic number. Equal symbolic numbers share one object, but a
// number that was created for a storage offset is only used for other storage offsets.
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

Ref GraphDecoder::plain_sizes(const Value& list) const {
  const auto items = children_of(list);
  return make_tuple(items.size(), [&](size_t i) {
    return Ref::steal(PyLong_FromLongLong(content_of(items[i]).integer));
  });
}

Ref GraphDecoder::symbolic_sizes(const Value& list) {
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

// Creates a fake tensor.
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
  const Value& offset = field(meta, Field::TensorMeta_storage_offset);
  const Value& start = content_of(offset);
  if (layout.get() == symbols.strided && start.kind == ValueKind::kInt && start.integer == 0) {
    const std::string key = plain_key(meta);
    if (!key.empty()) return plain_tensor(meta, key, dtype.get(), device, grad);
  }
  const Ref sizes = symbolic_sizes(field(meta, Field::TensorMeta_sizes));
  const Ref strides = symbolic_sizes(field(meta, Field::TensorMeta_strides));
  const Ref start_number = number(offset, Role::kOffset);
  const bool is_strided = layout.get() == symbols.strided;
  const std::string key =
      is_strided ? key_of(meta, sizes.get(), strides.get(), start_number.get()) : std::string();
  if (is_strided) {
    if (Ref made = like_first(device, key)) return made;
  }
  Ref made = call_method(values_.ptr(), fx::names.tensor, sizes, strides, start_number, dtype,
                         layout, device.object, grad ? Py_True : Py_False);
  if (is_strided) device.first.emplace(key, Ref::borrow(made.get()));
  return made;
}

// Returns a key that is equal for tensors of equal metadata; symbolic numbers count by identity.
std::string GraphDecoder::key_of(const Value& meta, PyObject* sizes, PyObject* strides,
                                 PyObject* offset) const {
  std::string key;
  const auto add = [&](const void* data, size_t size) {
    key.append(static_cast<const char*>(data), size);
  };
  const auto add_number = [&](PyObject* number) {
    const bool is_symbolic = !PyLong_Check(number);
    const int64_t value =
        is_symbolic ? reinterpret_cast<intptr_t>(number) : PyLong_AsLongLong(number);
    if (value == -1 && PyErr_Occurred()) throw_python_error();
    add(&is_symbolic, sizeof(is_symbolic));
    add(&value, sizeof(value));
  };
  for (PyObject* const each : {sizes, strides}) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(each); ++i) add_number(PyTuple_GET_ITEM(each, i));
  }
  add_number(offset);
  for (const Field each : {Field::TensorMeta_dtype, Field::TensorMeta_requires_grad}) {
    add(&field(meta, each).integer, sizeof(int64_t));
  }
  return key;
}

// Returns a new tensor like the device's first tensor with the key; empty if there is none.
Ref GraphDecoder::like_first(Device& device, const std::string& key) {
  const auto first = device.first.find(key);
  if (first == device.first.end()) return {};
  return fakes_of(device).like(first->second.get(), nullptr);
}

fx::FakeMaker& GraphDecoder::fakes_of(Device& device) {
  if (!device.fakes) {
    device.fakes.emplace(device.object.get(),
                         call_method(values_.ptr(), fx::names.fake_state, device.object));
  }
  return *device.fakes;
}

// Returns a key like key_of() for a tensor without symbolic sizes and strides and with offset 0;
// empty if a size or stride is symbolic.
std::string GraphDecoder::plain_key(const Value& meta) const {
  std::string key;
  const auto add = [&](int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const Field list : {Field::TensorMeta_sizes, Field::TensorMeta_strides}) {
    const auto items = children_of(meta, list);
    add(static_cast<int64_t>(items.size()));
    for (const Value& item : items) {
      const Value& content = content_of(item);
      if (content.kind != ValueKind::kInt) return {};
      add(content.integer);
    }
  }
  add(field(meta, Field::TensorMeta_dtype).integer);
  add(field(meta, Field::TensorMeta_requires_grad).integer);
  return key;
}

Ref GraphDecoder::plain_tensor(const Value& meta, const std::string& key, PyObject* dtype,
                               Device& device, bool grad) {
  if (Ref made = like_first(device, key)) return made;
  const Ref sizes = plain_sizes(field(meta, Field::TensorMeta_sizes));
  const Ref strides = plain_sizes(field(meta, Field::TensorMeta_strides));
  PyObject* shape[] = {sizes.get(), strides.get(), dtype, symbols.meta_device};
  const Ref real = Ref::steal(
      PyObject_Vectorcall(symbols.empty_strided, shape, 2, symbols.empty_strided_keywords));
  Ref fake = fakes_of(device).make(real.get(), grad);
  device.first.emplace(key, Ref::borrow(fake.get()));
  return fake;
}

}  // namespace fxpress::serde
