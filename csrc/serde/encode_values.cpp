#include "fx/symbols.h"
#include "py/calls.h"
#include "serde/graph_encoder.h"
#include "serde/scalars.h"
#include "serde/symbols.h"

namespace fxpress::serde {

namespace {

// Whether a tensor's attributes can be read in C++ because no Python class overrides them.
bool is_plain_tensor(PyObject* tensor) {
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  return type == fx::symbols.tensor_type || type == fx::symbols.parameter_type;
}

}  // namespace

// Caches the attributes of the last device, because most tensors of a program are on one device.
void GraphEncoder::device(PyObject* device) {
  bool known = device_.get() == device;
  if (!known && device_ && Py_TYPE(device) == Py_TYPE(device_.get())) {
    known = is_equal(device_.get(), device);
  }
  if (!known) {
    device_type_ = get_attr(device, fx::names.type);
    device_index_ = get_attr(device, fx::names.index);
    device_ = Ref::borrow(device);
  }
  out_.record(Type::Device, [&](Field field) {
    if (field == Field::Device_type) return out_.string(device_type_.get());
    if (device_index_.get() == Py_None) return sink_.null();
    out_.integer(device_index_.get());
  });
}

void GraphEncoder::symbolic(Table table, PyObject* value) {
  const TableFields& fields = kTableFields[static_cast<size_t>(table)];
  const auto number = [&](PyObject* constant) {
    if (table == Table::kSymBool) return sink_.boolean(PyObject_IsTrue(constant) == 1);
    if (table == Table::kSymFloat) return sink_.real(real_of(constant));
    out_.integer(constant);
  };
  Ref described;
  PyObject* constant = value;
  if (!PyLong_Check(value) && !PyFloat_Check(value)) {
    if (!texts_) texts_ = Ref::steal(PyDict_New());
    described = call(symbols.symbolic, value, texts_);
    constant = described.get();
  }
  if (!PyTuple_Check(constant)) return out_.choice(fields.known, [&] { number(constant); });
  out_.choice(fields.expression, [&] {
    out_.record(Type::SymExpr, [&](Field field) {
      if (field == Field::SymExpr_expr_str) return out_.string(PyTuple_GET_ITEM(constant, 0));
      PyObject* hint = PyTuple_GET_ITEM(constant, 1);
      if (hint == Py_None) return sink_.null();
      out_.choice(fields.hint, [&] { number(hint); });
    });
  });
}

void GraphEncoder::custom_object(PyObject* spec, PyObject* name) {
  out_.record(Type::CustomObjArgument, [&](Field field) {
    const bool is_name = field == Field::CustomObjArgument_name;
    if (is_name && name != nullptr) return out_.string(name);
    out_.string(get_attr(spec, is_name ? fx::names.name : fx::names.class_fqn).get());
  });
}

void GraphEncoder::tensor_meta(PyObject* tensor) {
  core::TensorFacts facts{};
  const bool is_fake = reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == fx::symbols.fake_tensor_type;
  const bool has_facts = read_tensor_facts != nullptr && (is_fake || is_plain_tensor(tensor)) &&
                         read_tensor_facts(tensor, &facts);
  const auto number = [&](int64_t value) {
    out_.choice(Field::SymInt_as_int, [&] { sink_.integer(value); });
  };
  const auto numbers = [&](const int64_t* values) {
    sink_.begin_list();
    for (size_t i = 0; i < facts.dims; ++i) number(values[i]);
    sink_.end_list();
  };
  const auto sizes = [&](const Ref& sequence) {
    const Ref held = Ref::steal(PySequence_Tuple(sequence.get()));
    out_.list(held.get(), [&](PyObject* size) { symbolic(Table::kSymInt, size); });
  };
  const auto coded = [&](const Ref& key, PyObject* table) {
    out_.integer(Ref::steal(PyObject_GetItem(table, key.get())).get());
  };
  out_.record(Type::TensorMeta, [&](Field field) {
    switch (field) {
      case Field::TensorMeta_dtype:
        return coded(has_facts ? Ref::borrow(static_cast<PyObject*>(facts.dtype))
                               : get_attr(tensor, fx::names.dtype),
                     symbols.scalar_types);
      case Field::TensorMeta_sizes:
        return has_facts ? numbers(facts.sizes) : sizes(get_attr(tensor, fx::names.shape));
      case Field::TensorMeta_requires_grad:
        return sink_.boolean(has_facts
                                 ? facts.requires_grad
                                 : get_attr(tensor, fx::names.requires_grad).get() == Py_True);
      case Field::TensorMeta_device:
        return device(
            get_attr(tensor, has_facts && is_fake ? symbols.fake_device : fx::names.device).get());
      case Field::TensorMeta_strides:
        return has_facts ? numbers(facts.strides) : sizes(call_method(tensor, fx::names.stride));
      case Field::TensorMeta_storage_offset:
        if (has_facts) return number(facts.storage_offset);
        return symbolic(Table::kSymInt, call_method(tensor, fx::names.storage_offset).get());
      default:
        return coded(has_facts ? Ref::borrow(symbols.strided) : get_attr(tensor, fx::names.layout),
                     symbols.layouts);
    }
  });
}

}  // namespace fxpress::serde
