#include "fx/serde/objects.h"

#include "fx/serde/scalars.h"
#include "fx/serde/text.h"

namespace fxpress::fx::serde {

using ::fxpress::serde::Document;
using ::fxpress::serde::Schema;
using ::fxpress::serde::Sink;
using ::fxpress::serde::TypeInfo;
using ::fxpress::serde::Value;
using ::fxpress::serde::ValueKind;

namespace {

PyObject* tag_name() {
  static PyObject* const name = check(PyUnicode_InternFromString("_type"));
  return name;
}

}  // namespace

SchemaClasses::SchemaClasses(const Schema& schema, PyObject* classes, PyObject* make_tag)
    : schema_(schema) {
  for (Py_ssize_t i = 0; i < PyList_Size(classes); ++i) {
    PyObject* type = PyList_GET_ITEM(classes, i);
    const TypeInfo& info = schema.type(static_cast<uint16_t>(i));
    Class made{Ref::borrow(type), {}, {}, {}};
    const Ref empty = Ref::steal(PyDict_New());
    for (const auto& field : info.fields) {
      made.names.push_back(Ref::steal(PyUnicode_InternFromString(field.name.c_str())));
      check(PyDict_SetItem(empty.get(), made.names.back().get(), Py_None));
    }
    for (size_t k = 0; k < (info.is_union ? made.names.size() : 1); ++k) {
      made.templates.push_back(Ref::steal(PyDict_Copy(empty.get())));
      if (!info.is_union) continue;
      PyObject* arguments[] = {made.names[k].get(), type};
      made.tags.push_back(Ref::steal(PyObject_Vectorcall(make_tag, arguments, 2, nullptr)));
      check(PyDict_SetItem(made.templates[k].get(), tag_name(), made.tags[k].get()));
    }
    ids_.emplace(reinterpret_cast<PyTypeObject*>(type), classes_.size());
    classes_.push_back(std::move(made));
  }
}

Ref SchemaClasses::make_instance(const Class& info, Ref dict) const {
  auto* type = reinterpret_cast<PyTypeObject*>(info.type.get());
  Ref object = Ref::steal(type->tp_alloc(type, 0));
  check(PyObject_GenericSetDict(object.get(), dict.get(), nullptr));
  return object;
}

Ref SchemaClasses::make(const Document& document, const Value& value) const {
  if (Ref plain = scalar(document, value)) return plain;
  const auto inside = document.children(value);
  switch (value.kind) {
    case ValueKind::kList: {
      Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(inside.size())));
      for (size_t i = 0; i < inside.size(); ++i) {
        PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i),
                        make(document, inside[i]).release());
      }
      return list;
    }
    case ValueKind::kMap: {
      Ref dict = Ref::steal(PyDict_New());
      for (size_t i = 0; i < inside.size(); i += 2) {
        check(PyDict_SetItem(dict.get(), new_text(document.text(inside[i])).get(),
                             make(document, inside[i + 1]).get()));
      }
      return dict;
    }
    case ValueKind::kUnion: {
      const Class& info = classes_[value.type];
      Ref dict = Ref::steal(PyDict_Copy(info.templates[value.count].get()));
      check(PyDict_SetItem(dict.get(), info.names[value.count].get(),
                           make(document, inside[0]).get()));
      return make_instance(info, std::move(dict));
    }
    default: {
      const Class& info = classes_[value.type];
      Ref dict = Ref::steal(PyDict_Copy(info.templates[0].get()));
      for (size_t i = 0; i < inside.size(); ++i) {
        check(PyDict_SetItem(dict.get(), info.names[i].get(), make(document, inside[i]).get()));
      }
      return make_instance(info, std::move(dict));
    }
  }
}

void SchemaClasses::write_instance(const Class& info, size_t type, PyObject* object, Sink& sink,
                                   bool metadata) const {
  const TypeInfo& declared = schema_.type(static_cast<uint16_t>(type));
  // Unions look at what is asked of them; this does not.
  const auto attribute = [&](PyObject* name) {
    return Ref::steal(PyObject_GenericGetAttr(object, name));
  };
  if (declared.is_union) {
    PyObject* found = PyObject_GenericGetAttr(object, tag_name());
    if (found == nullptr) {
      PyErr_Clear();
      raise(PyExc_RuntimeError, "Please use %s.create to instantiate the union type.",
            declared.name.c_str());
    }
    const Ref tag = Ref::steal(found);
    const Text text(tag.get());
    const int position = declared.find(text.view());
    if (position < 0) {
      raise(PyExc_AttributeError, "%s has no field %R", declared.name.c_str(), tag.get());
    }
    sink.begin_union(declared, static_cast<size_t>(position));
    write(attribute(info.names[static_cast<size_t>(position)].get()).get(), sink, metadata);
    return sink.end_union();
  }
  sink.begin_record(declared);
  for (size_t i = 0; i < info.names.size(); ++i) {
    sink.field(i);
    if (!metadata && declared.fields[i].id == ::fxpress::serde::Field::Node_metadata) {
      sink.begin_map();
      sink.end_map();
      continue;
    }
    write(attribute(info.names[i].get()).get(), sink, metadata);
  }
  sink.end_record();
}

void SchemaClasses::write(PyObject* object, Sink& sink, bool metadata) const {
  if (object == Py_None) return sink.null();
  if (PyBool_Check(object)) return sink.boolean(object == Py_True);
  if (PyUnicode_Check(object)) return sink.string(Text(object).view());
  if (PyLong_Check(object)) return write_integer(object, sink);
  if (PyFloat_Check(object)) return sink.real(PyFloat_AS_DOUBLE(object));
  const RecursionGuard guard(" in an object of the schema");
  if (const auto found = ids_.find(Py_TYPE(object)); found != ids_.end()) {
    return write_instance(classes_[found->second], found->second, object, sink, metadata);
  }
  if (PyList_Check(object) || PyTuple_Check(object)) {
    sink.begin_list();  // Python code may change a list meanwhile: its size is asked each time
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      write(Ref::borrow(PySequence_Fast_GET_ITEM(object, i)).get(), sink, metadata);
    }
    return sink.end_list();
  }
  if (!PyDict_Check(object)) {
    raise(PyExc_TypeError, "Object of type %s is not JSON serializable", Py_TYPE(object)->tp_name);
  }
  sink.begin_map();
  const Ref items = Ref::steal(PyMapping_Items(object));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
    PyObject* item = PyList_GET_ITEM(items.get(), i);
    sink.key(Text(PyTuple_GET_ITEM(item, 0)).view());
    write(PyTuple_GET_ITEM(item, 1), sink, metadata);
  }
  sink.end_map();
}

}  // namespace fxpress::fx::serde
