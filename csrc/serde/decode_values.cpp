#include "serde/decode_values.h"

#include <utility>

#include "schema/extent.h"
#include "serde/scalars.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

namespace {

// Objects take about so many bytes.
constexpr uint64_t kTensorBytes = 1200;
constexpr uint64_t kNumberBytes = 500;
constexpr uint32_t kMostDimensions = 64;  // of a tensor that operators of torch take

}  // namespace

ValueDecoder::ValueDecoder(Decoding& file)
    : file_(file),
      dtypes_(by_number(symbols.scalar_types)),
      layouts_(by_number(symbols.layouts)),
      memory_formats_(by_number(symbols.memory_formats)) {}

PyObject* ValueDecoder::value_of(Defined& defined, std::string_view name) {
  if (!defined.value) {
    if (defined.meta == nullptr) {
      raise(symbols.serialize_error, "the tables of the graph have no value named %R",
            new_text(name).get());
    }
    const Document* current = std::exchange(file_.document, defined.document);
    struct Restore {
      const Document*& document;
      const Document* current;
      ~Restore() { document = current; }
    } const restores{file_.document, current};
    defined.value = make_value(defined);
  }
  return defined.value.get();
}

Ref ValueDecoder::make_value(const Defined& defined) {
  switch (defined.table) {
    case Table::kTensor:
      return tensor(*defined.meta);
    case Table::kCustomObject:
      return custom_object(*defined.meta);
    default:
      return number(*defined.meta);
  }
}

Ref ValueDecoder::custom_object(const Value& record) {
  const Ref name = new_text(file_.text(record, Field::CustomObjArgument_name));
  const Ref class_name = new_text(file_.text(record, Field::CustomObjArgument_class_fqn));
  PyObject* arguments[] = {name.get(), class_name.get()};
  return Ref::steal(PyObject_Vectorcall(symbols.custom_obj_argument_type, arguments, 2, nullptr));
}

// An int, float or bool, or what stands for one. Equal ones are one object; offsets in storages are
// their own, unless the same number is known already.
Ref ValueDecoder::number(const Value& value, Role role) {
  const Value& content = file_.content(value);
  if (content.kind != ValueKind::kRecord) return file_.scalar(content);
  const Value& expression = file_.field(content, Field::SymExpr_expr_str);
  const Value& hint = file_.field(content, Field::SymExpr_hint);
  std::string key(1, static_cast<char>('0' + value.type));
  Ref hint_value = Ref::borrow(Py_None);
  if (hint.kind == ValueKind::kUnion) {
    hint_value = file_.scalar(file_.content(hint));
    key += Text(Ref::steal(PyObject_Repr(hint_value.get())).get()).view();
  }
  key += ' ';
  key += file_.text(expression);
  if (const auto known = numbers_.find(key); known != numbers_.end()) {
    return Ref::borrow(known->second.get());
  }
  const bool is_offset = role == Role::kOffset;
  if (is_offset) {
    key.insert(0, 1, ' ');  // no other key begins like that
    if (const auto known = numbers_.find(key); known != numbers_.end()) {
      return Ref::borrow(known->second.get());
    }
  }
  file_.charge(kNumberBytes + key.size());
  const Ref kind =
      Ref::steal(PyUnicode_FromString(file_.document->schema().type(value.type).name.c_str()));
  const Ref source = new_text(file_.text(expression));
  PyObject* arguments[] = {file_.context.values, kind.get(), source.get(), hint_value.get(),
                           is_offset ? Py_True : Py_False};
  Ref made = Ref::steal(PyObject_VectorcallMethod(names.number, arguments, 5, nullptr));
  return Ref::borrow(numbers_.emplace(std::move(key), std::move(made)).first->second.get());
}

Ref ValueDecoder::plain_sizes(const Value& list) const {
  const auto items = file_.children(list);
  Ref sizes = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    PyTuple_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(i),
                     check(PyLong_FromLongLong(file_.content(items[i]).integer)));
  }
  return sizes;
}

Ref ValueDecoder::symbolic_sizes(const Value& list) {
  const auto items = file_.children(list);
  Ref sizes = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
  for (size_t i = 0; i < items.size(); ++i) {
    PyTuple_SET_ITEM(sizes.get(), static_cast<Py_ssize_t>(i), number(items[i]).release());
  }
  return sizes;
}

ValueDecoder::Device& ValueDecoder::known_device(const Value& value) {
  const std::string_view type = file_.text(value, Field::Device_type);
  const Value& stored = file_.field(value, Field::Device_index);
  std::optional<int64_t> index;
  if (stored.kind == ValueKind::kInt) {
    index = stored.integer;
  } else if (stored.kind != ValueKind::kNull) {
    raise(symbols.serialize_error, "%R is no index of a device", file_.scalar(stored).get());
  }
  for (Device& known : devices_) {
    if (known.index == index && known.type == type) return known;
  }
  const Ref name = new_text(type);
  const Ref number = file_.scalar(stored);
  PyObject* arguments[] = {file_.context.values, name.get(), number.get()};
  Ref object = Ref::steal(PyObject_VectorcallMethod(names.device, arguments, 3, nullptr));
  return devices_.emplace_back(std::string(type), index, std::move(object));
}

Ref ValueDecoder::device_of(const Value& value) {
  return Ref::borrow(known_device(value).object.get());
}

void ValueDecoder::forget() {
  numbers_.clear();
  devices_.clear();
}

Ref ValueDecoder::from_table(const std::vector<Ref>& table, const Value& code,
                             const char* what) const {
  const auto place = static_cast<size_t>(code.integer);
  if (code.kind != ValueKind::kInt || place >= table.size() || !table[place]) {
    raise(symbols.serialize_error, "%R is no %s", file_.scalar(code).get(), what);
  }
  return Ref::borrow(table[place].get());
}

// A fake tensor.
Ref ValueDecoder::tensor(const Value& meta) {
  file_.charge(kTensorBytes);
  file_.charge(file_.field(meta, Field::TensorMeta_sizes).count, 2 * kSlotBytes);
  Device& device = known_device(file_.field(meta, Field::TensorMeta_device));
  const Ref dtype = dtype_of(file_.field(meta, Field::TensorMeta_dtype));
  const Ref layout = layout_of(file_.field(meta, Field::TensorMeta_layout));
  const bool grad = file_.field(meta, Field::TensorMeta_requires_grad).integer != 0;
  const uint32_t dimensions = file_.field(meta, Field::TensorMeta_sizes).count;
  if (dimensions > kMostDimensions) {
    raise(symbols.serialize_error, "a tensor has %u dimensions", dimensions);
  }
  if (!schema::is_countable(*file_.document, meta)) {
    raise(symbols.serialize_error, "a tensor's sizes, strides or offset are too large");
  }
  const Value& offset = file_.field(meta, Field::TensorMeta_storage_offset);
  const Value& start = file_.content(offset);
  if (layout.get() == symbols.strided && start.kind == ValueKind::kInt && start.integer == 0) {
    const std::string key = plain_key(meta);
    if (!key.empty()) return plain_tensor(meta, key, dtype.get(), device, grad);
  }
  const Ref sizes = symbolic_sizes(file_.field(meta, Field::TensorMeta_sizes));
  const Ref strides = symbolic_sizes(file_.field(meta, Field::TensorMeta_strides));
  const Ref place = number(offset, Role::kOffset);
  PyObject* arguments[] = {
      file_.context.values, sizes.get(),  strides.get(),       place.get(),
      dtype.get(),          layout.get(), device.object.get(), grad ? Py_True : Py_False};
  return Ref::steal(PyObject_VectorcallMethod(names.tensor, arguments, 8, nullptr));
}

// What is equal for tensors with equal facts, of which the sizes and strides are numbers; empty
// where one of them is a symbol.
std::string ValueDecoder::plain_key(const Value& meta) const {
  std::string key;
  const auto add = [&](int64_t number) {
    key.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const Field list : {Field::TensorMeta_sizes, Field::TensorMeta_strides}) {
    const auto items = file_.children(file_.field(meta, list));
    add(static_cast<int64_t>(items.size()));
    for (const Value& item : items) {
      const Value& content = file_.content(item);
      if (content.kind != ValueKind::kInt) return {};
      add(content.integer);
    }
  }
  add(file_.field(meta, Field::TensorMeta_dtype).integer);
  add(file_.field(meta, Field::TensorMeta_requires_grad).integer);
  return key;
}

Ref ValueDecoder::plain_tensor(const Value& meta, const std::string& key, PyObject* dtype,
                               Device& device, bool grad) {
  if (!device.fakes) {
    PyObject* object = device.object.get();
    device.fakes.emplace(object, Ref::steal(PyObject_CallMethodOneArg(file_.context.values,
                                                                      names.fake_state, object)));
  }
  const auto first = device.first.find(key);
  if (first != device.first.end()) {
    if (Ref made = device.fakes->like(first->second.get(), nullptr)) return made;
  }
  const Ref sizes = plain_sizes(file_.field(meta, Field::TensorMeta_sizes));
  const Ref strides = plain_sizes(file_.field(meta, Field::TensorMeta_strides));
  PyObject* shape[] = {sizes.get(), strides.get(), dtype, symbols.meta_device};
  const Ref real = Ref::steal(
      PyObject_Vectorcall(symbols.empty_strided, shape, 2, symbols.empty_strided_keywords));
  Ref fake = device.fakes->make(real.get(), grad);
  device.first.emplace(key, Ref::borrow(fake.get()));
  return fake;
}

}  // namespace fxpress::serde
