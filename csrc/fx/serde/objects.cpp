#include "fx/serde/objects.h"

#include <algorithm>

#include "fx/containers.h"
#include "fx/serde/scalars.h"
#include "fx/serde/text.h"
#include "serde/json_writer.h"

namespace fxpress::fx::serde {

using ::fxpress::serde::Document;
using ::fxpress::serde::Kind;
using ::fxpress::serde::Schema;
using ::fxpress::serde::Shape;
using ::fxpress::serde::TypeInfo;
using ::fxpress::serde::Value;
using ::fxpress::serde::ValueKind;

namespace {

// Python keeps up to 29 attributes of an object without a dict: those of a union, and its tag.
constexpr size_t kMostWithoutDict = 28;

PyObject* tag_name() {
  static PyObject* const name = check(PyUnicode_InternFromString("_type"));
  return name;
}

// Classes that look at what is set or asked of them do not see it.
void set_attribute(PyObject* object, PyObject* name, PyObject* value) {
  check(PyObject_GenericSetAttr(object, name, value));
}

// Objects are made without asking their class: it may keep nothing but attributes.
void check_plain(PyObject* type) {
  for (PyTypeObject* base = as_type(type); base != &PyBaseObject_Type; base = base->tp_base) {
    if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) == 0) {
      raise(PyExc_TypeError, "a class of the schema is a kind of %s", base->tp_name);
    }
  }
}

}  // namespace

SchemaClasses::SchemaClasses(const Schema& schema, PyObject* classes, PyObject* make_tag)
    : schema_(schema) {
  for (Py_ssize_t i = 0; i < PyList_Size(classes); ++i) {
    PyObject* type = PyList_GET_ITEM(classes, i);
    check_plain(type);
    const TypeInfo& info = schema.type(static_cast<uint16_t>(i));
    Class made{Ref::borrow(type), {}, {}, {}};
    const Ref empty = Ref::steal(PyDict_New());
    for (const auto& field : info.fields) {
      made.names.push_back(Ref::steal(PyUnicode_InternFromString(field.name.c_str())));
      check(PyDict_SetItem(empty.get(), made.names.back().get(), Py_None));
    }
    for (size_t k = 0; info.is_union && k < made.names.size(); ++k) {
      PyObject* arguments[] = {made.names[k].get(), type};
      made.tags.push_back(Ref::steal(PyObject_Vectorcall(make_tag, arguments, 2, nullptr)));
      if (made.names.size() <= kMostWithoutDict) continue;
      made.templates.push_back(Ref::steal(PyDict_Copy(empty.get())));
      check(PyDict_SetItem(made.templates[k].get(), tag_name(), made.tags[k].get()));
    }
    ids_.emplace(reinterpret_cast<PyTypeObject*>(type), classes_.size());
    classes_.push_back(std::move(made));
  }
}

class SchemaClasses::Maker {
 public:
  Maker(const SchemaClasses& classes, const Document& document)
      : classes_(classes.classes_), document_(document) {}

  Ref make(const Value& value) {
    if (Ref plain = scalar(document_, value)) return plain;
    const auto inside = document_.children(value);
    switch (value.kind) {
      case ValueKind::kList: {
        Ref list = Ref::steal(PyList_New(static_cast<Py_ssize_t>(inside.size())));
        for (size_t i = 0; i < inside.size(); ++i) {
          PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), make(inside[i]).release());
        }
        return list;
      }
      case ValueKind::kMap: {
        Ref dict = Ref::steal(PyDict_New());
        for (size_t i = 0; i < inside.size(); i += 2) {
          check(PyDict_SetItem(dict.get(), new_text(document_.text(inside[i])).get(),
                               make(inside[i + 1]).get()));
        }
        return dict;
      }
      case ValueKind::kUnion:
        return union_of(classes_[value.type], value.count, make(inside[0]).get());
      default: {
        const Class& info = classes_[value.type];
        Ref object = new_object(info.type.get());
        for (size_t i = 0; i < inside.size(); ++i) {
          set_attribute(object.get(), info.names[i].get(), make(inside[i]).get());
        }
        return object;
      }
    }
  }

 private:
  static Ref union_of(const Class& info, size_t position, PyObject* value) {
    if (!info.templates.empty()) {
      const Ref dict = Ref::steal(PyDict_Copy(info.templates[position].get()));
      check(PyDict_SetItem(dict.get(), info.names[position].get(), value));
      return new_instance(info.type.get(), dict.get());
    }
    Ref object = new_object(info.type.get());
    for (size_t i = 0; i < info.names.size(); ++i) {
      set_attribute(object.get(), info.names[i].get(), i == position ? value : Py_None);
    }
    set_attribute(object.get(), tag_name(), info.tags[position].get());
    return object;
  }

  const std::vector<Class>& classes_;
  const Document& document_;
};

Ref SchemaClasses::make(const Document& document, const Value& value) const {
  return Maker(*this, document).make(value);
}

// Sends objects to a sink, each after a look at the shape that the schema wants at its place.
// `Out` is the sink's own class, so that its methods are known.
template <class Out>
class SchemaClasses::Writer {
 public:
  Writer(const SchemaClasses& classes, Out& sink, bool metadata)
      : classes_(classes), schema_(classes.schema_), sink_(sink), metadata_(metadata) {}

  void instance(uint16_t type, PyObject* object) {
    const RecursionGuard guard(" in an object of the schema");
    const TypeInfo& declared = schema_.type(type);
    const Class& info = classes_.classes_[type];
    if (declared.is_union) return choice(declared, info, object);
    sink_.begin_record(declared);
    for (size_t i = 0; i < info.names.size(); ++i) {
      sink_.field(i);
      field_ = {&declared, i};
      if (!metadata_ && declared.fields[i].id == ::fxpress::serde::Field::Node_metadata) {
        sink_.begin_map();
        sink_.end_map();
        continue;
      }
      value(declared.fields[i].shape, attribute(object, info.names[i].get()).get());
    }
    sink_.end_record();
  }

 private:
  // Unions look at what is asked of them; this does not.
  static Ref attribute(PyObject* object, PyObject* name) {
    return Ref::steal(PyObject_GenericGetAttr(object, name));
  }

  void choice(const TypeInfo& declared, const Class& info, PyObject* object) {
    PyObject* found = PyObject_GenericGetAttr(object, tag_name());
    if (found == nullptr) {
      PyErr_Clear();
      raise(PyExc_RuntimeError, "Please use %s.create to instantiate the union type.",
            declared.name.c_str());
    }
    const Ref tag = Ref::steal(found);
    const auto known = std::find_if(info.tags.begin(), info.tags.end(),
                                    [&](const Ref& each) { return each.get() == tag.get(); });
    const int position = known != info.tags.end() ? static_cast<int>(known - info.tags.begin())
                                                  : declared.find(Text(tag.get()).view());
    if (position < 0) {
      raise(PyExc_AttributeError, "%s has no field %R", declared.name.c_str(), tag.get());
    }
    const auto place = static_cast<size_t>(position);
    sink_.begin_union(declared, place);
    field_ = {&declared, place};
    value(declared.fields[place].shape, attribute(object, info.names[place].get()).get());
    sink_.end_union();
  }

  void value(uint16_t shape_id, PyObject* object) {
    const Shape shape = schema_.shape(shape_id);
    switch (shape.kind) {
      case Kind::kOptional:
        return object == Py_None ? sink_.null() : value(shape.of, object);
      case Kind::kRecord:
      case Kind::kUnion:
        if (Py_TYPE(object) != as_type(classes_.classes_[shape.of].type.get())) break;
        return instance(shape.of, object);
      case Kind::kString:
        if (!PyUnicode_Check(object)) break;
        return sink_.string(Text(object).view());
      case Kind::kBool:
        if (!PyBool_Check(object)) break;
        return sink_.boolean(object == Py_True);
      case Kind::kInt:
        if (!PyLong_Check(object) || PyBool_Check(object)) break;
        return write_integer(object, sink_);
      case Kind::kFloat:
        if (PyFloat_Check(object)) return sink_.real(PyFloat_AS_DOUBLE(object));
        if (!PyLong_Check(object) || PyBool_Check(object)) break;
        return write_integer(object, sink_);
      case Kind::kList:
        if (!PyList_Check(object) && !PyTuple_Check(object)) break;
        return list(shape.of, object);
      case Kind::kMap:
        if (!PyDict_Check(object)) break;
        return map(shape.of, object);
    }
    raise(PyExc_TypeError, "%s.%s cannot be %s", field_.type->name.c_str(),
          field_.type->fields[field_.position].name.c_str(), Py_TYPE(object)->tp_name);
  }

  void list(uint16_t of, PyObject* object) {
    const Place place = field_;
    sink_.begin_list();  // Python code may change a list meanwhile: its size is asked each time
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      field_ = place;
      value(of, Ref::borrow(PySequence_Fast_GET_ITEM(object, i)).get());
    }
    sink_.end_list();
  }

  void map(uint16_t of, PyObject* object) {
    const Place place = field_;
    sink_.begin_map();
    const Ref items = Ref::steal(PyMapping_Items(object));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items.get()); ++i) {
      PyObject* item = PyList_GET_ITEM(items.get(), i);
      field_ = place;
      sink_.key(Text(PyTuple_GET_ITEM(item, 0)).view());
      value(of, PyTuple_GET_ITEM(item, 1));
    }
    sink_.end_map();
  }

  struct Place {
    const TypeInfo* type;
    size_t position;
  };

  const SchemaClasses& classes_;
  const Schema& schema_;
  Out& sink_;
  const bool metadata_;
  Place field_{};  // the innermost that is open, for messages
};

template <class Out>
void SchemaClasses::write(PyObject* object, Out& sink, bool metadata) const {
  const auto found = ids_.find(Py_TYPE(object));
  if (found == ids_.end()) {
    raise(PyExc_TypeError, "%s is not a class of the schema", Py_TYPE(object)->tp_name);
  }
  Writer<Out>(*this, sink, metadata).instance(static_cast<uint16_t>(found->second), object);
}

template void SchemaClasses::write(PyObject*, ::fxpress::serde::DocumentBuilder&, bool) const;
template void SchemaClasses::write(PyObject*, ::fxpress::serde::JsonWriter&, bool) const;

}  // namespace fxpress::fx::serde
