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

// Caches the attributes of the last device: most tensors of a program are on one device.
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

void GraphEncoder::tensor_facts(const core::TensorFacts& facts, PyObject* place) {
  const auto number = [&](int64_t value) {
    out_.choice(Field::SymInt_as_int, [&] { sink_.integer(value); });
  };
  const auto numbers = [&](const int64_t* values) {
    sink_.begin_list();
    for (size_t i = 0; i < facts.dims; ++i) number(values[i]);
    sink_.end_list();
  };
  const auto coded = [&](PyObject* key, PyObject* table) {
    PyObject* code = dict_get(table, key);
    if (code == nullptr) {
      PyErr_SetObject(PyExc_KeyError, key);
      throw_python_error();
    }
    out_.integer(code);
  };
  out_.record(Type::TensorMeta, [&](Field field) {
    switch (field) {
      case Field::TensorMeta_dtype:
        return coded(static_cast<PyObject*>(facts.dtype), symbols.scalar_types);
      case Field::TensorMeta_sizes:
        return numbers(facts.sizes);
      case Field::TensorMeta_requires_grad:
        return sink_.boolean(facts.requires_grad);
      case Field::TensorMeta_device:
        return device(place);
      case Field::TensorMeta_strides:
        return numbers(facts.strides);
      case Field::TensorMeta_storage_offset:
        return number(facts.storage_offset);
      default:
        return coded(symbols.strided, symbols.layouts);
    }
  });
}

void GraphEncoder::tensor_meta(PyObject* tensor) {
  const auto sizes = [&](PyObject* numbers) {
    const Ref held = Ref::steal(PySequence_Tuple(numbers));
    out_.list(held.get(), [&](PyObject* size) { symbolic(Table::kSymInt, size); });
  };
  core::TensorFacts facts{};
  const bool is_fake = reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == fx::symbols.fake_tensor_type;
  if (read_tensor_facts != nullptr && (is_fake || is_plain_tensor(tensor)) &&
      read_tensor_facts(tensor, &facts)) {
    const Ref place = get_attr(tensor, is_fake ? symbols.fake_device : fx::names.device);
    return tensor_facts(facts, place.get());
  }
  const auto coded = [&](PyObject* name, PyObject* table) {
    const Ref value = get_attr(tensor, name);
    out_.integer(Ref::steal(PyObject_GetItem(table, value.get())).get());
  };
  out_.record(Type::TensorMeta, [&](Field field) {
    switch (field) {
      case Field::TensorMeta_dtype:
        return coded(fx::names.dtype, symbols.scalar_types);
      case Field::TensorMeta_sizes:
        return sizes(get_attr(tensor, fx::names.shape).get());
      case Field::TensorMeta_requires_grad:
        return sink_.boolean(get_attr(tensor, fx::names.requires_grad).get() == Py_True);
      case Field::TensorMeta_device:
        return device(get_attr(tensor, fx::names.device).get());
      case Field::TensorMeta_strides:
        return sizes(call_method(tensor, fx::names.stride).get());
      case Field::TensorMeta_storage_offset:
        return symbolic(Table::kSymInt, call_method(tensor, fx::names.storage_offset).get());
      default:
        return coded(fx::names.layout, symbols.layouts);
    }
  });
}

}  // namespace fxpress::serde
