#include "serde/objects.h"

#include <algorithm>
#include <type_traits>

#include "core/budget.h"
#include "core/check.h"
#include "core/text_hash.h"
#include "py/calls.h"
#include "py/containers.h"
#include "schema/json_writer.h"
#include "serde/scalars.h"

namespace fxpress::serde {

using schema::Document;
using schema::DocumentBuilder;
using schema::Kind;
using schema::Schema;
using schema::Shape;
using schema::TypeInfo;
using schema::Value;
using schema::ValueKind;

namespace {

// CPython stores up to 29 attributes without a dict: 28 fields, and `_type` of a union.
constexpr size_t kMostWithoutDict = 28;

PyObject* tag_name() {
  static PyObject* const name = check(PyUnicode_InternFromString("_type"));
  return name;
}

// Returns the hash that a str caches, or -1. Does not read the characters of the str.
Py_hash_t kept_hash(PyObject* string) {
  return PyUnicode_Check(string) ? reinterpret_cast<PyASCIIObject*>(string)->hash : -1;
}

// Raises TypeError if a schema class has a base class that is not written in Python, because
// objects are created without calling __new__.
void check_plain(PyObject* type) {
  for (PyTypeObject* base = as_type(type); base != &PyBaseObject_Type; base = base->tp_base) {
    if (PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE) == 0) {
      raise(PyExc_TypeError,
            "a class of the schema is derived from %s, expected only Python classes",
            base->tp_name);
    }
  }
}

}  // namespace

SchemaClasses::SchemaClasses(const Schema& schema, PyObject* classes, PyObject* enumerations,
                             PyObject* make_tag)
    : schema_(schema) {
  for (Py_ssize_t i = 0; i < PyList_Size(classes); ++i) {
    PyObject* type = PyList_GET_ITEM(classes, i);
    check_plain(type);
    const TypeInfo& info = schema.type(static_cast<uint16_t>(i));
    Class made;
    made.type = Ref::borrow(type);
    for (const auto& field : info.fields) {
      made.names.push_back(Ref::steal(PyUnicode_InternFromString(field.name.c_str())));
    }
    made.members.resize(made.names.size());
    PyObject* const fields = dict_get(enumerations, type);
    for (size_t k = 0; fields != nullptr && k < made.members.size(); ++k) {
      PyObject* const members = dict_get(fields, made.names[k].get());
      if (members != nullptr) made.members[k] = Ref::borrow(members);
    }
    for (size_t k = 0; info.is_union && k < made.names.size(); ++k) {
      made.tags.push_back(call(make_tag, made.names[k], type));
      made.hashes.push_back(PyObject_Hash(made.names[k].get()));
      if (made.names.size() <= kMostWithoutDict) continue;
      made.templates.push_back(Ref::steal(PyDict_New()));
      PyObject* const dict = made.templates.back().get();
      check(PyDict_SetItem(dict, made.names[k].get(), Py_None));
      check(PyDict_SetItem(dict, tag_name(), made.tags[k].get()));
    }
    ids_.emplace(reinterpret_cast<PyTypeObject*>(type), classes_.size());
    classes_.push_back(std::move(made));
  }
}

Ref SchemaClasses::new_union(const Class& info, size_t position, PyObject* value) {
  if (!info.templates.empty()) {
    const Ref dict = Ref::steal(PyDict_Copy(info.templates[position].get()));
    check(PyDict_SetItem(dict.get(), info.names[position].get(), value));
    return new_instance(info.type.get(), dict.get());
  }
  Ref object = new_object(info.type.get());
  set_attribute(object.get(), info.names[position].get(), value);
  set_attribute(object.get(), tag_name(), info.tags[position].get());
  return object;
}

class SchemaClasses::Maker {
 public:
  Maker(const SchemaClasses& classes, const Document& document, bool all_members,
        std::span<const Ref> kept)
      : classes_(classes.classes_), document_(document), all_members_(all_members), kept_(kept) {}

  // members: {int: enum member} if the field of the value is an enum; else null.
  Ref make(const Value& value, PyObject* members) {
    if (value.kind == ValueKind::kString) return text(document_.text(value));
    if (Ref plain = scalar(document_, value)) {
      const bool is_member = value.kind == ValueKind::kInt && (all_members_ || value.count == 1);
      PyObject* member = members != nullptr && is_member ? dict_get(members, plain.get()) : nullptr;
      return member != nullptr ? Ref::borrow(member) : std::move(plain);
    }
    const auto inside = document_.children(value);
    switch (value.kind) {
      case ValueKind::kList:
        return make_list(inside.size(), [&](size_t i) { return make(inside[i], members); });
      case ValueKind::kMap: {
        Ref dict = Ref::steal(PyDict_New());
        for (size_t i = 0; i < inside.size(); i += 2) {
          check(PyDict_SetItem(dict.get(), text(document_.text(inside[i])).get(),
                               make(inside[i + 1], members).get()));
        }
        return dict;
      }
      case ValueKind::kKept:
        return Ref::borrow(kept_[value.place].get());
      case ValueKind::kUnion:
        return new_union(classes_[value.type], value.count,
                         make(inside[0], classes_[value.type].members[value.count].get()).get());
      default: {
        const Class& info = classes_[value.type];
        Ref object = new_object(info.type.get());
        for (size_t i = 0; i < inside.size(); ++i) {
          Ref made = make(inside[i], info.members[i].get());
          set_attribute(object.get(), info.names[i].get(), made.get());
        }
        return object;
      }
    }
  }

 private:
  struct Shared {
    std::string_view text;
    Ref object;
  };

  // Returns a str that equal texts share, because most texts, such as operator names, repeat soon.
  Ref text(std::string_view text) {
    if (text.size() > kLongestShared) return new_text(text);
    Shared& slot = texts_[core::TextHash()(text) % texts_.size()];
    if (!slot.object || slot.text != text) slot = {text, new_text(text)};
    return Ref::borrow(slot.object.get());
  }

  static constexpr size_t kLongestShared = 64;  // bytes

  const std::vector<Class>& classes_;
  const Document& document_;
  const bool all_members_;
  const std::span<const Ref> kept_;
  std::vector<Shared> texts_ = std::vector<Shared>(1024);  // recent texts, by hash
};

Ref SchemaClasses::make(const Document& document, const Value& value, bool all_members,
                        std::span<const Ref> kept) const {
  return Maker(*this, document, all_members, kept).make(value, nullptr);
}

// The base of all walks over schema objects. It reads attributes and tags, and checks each value
// before it is used.
class SchemaClasses::Walk {
 protected:
  struct Place {
    const TypeInfo* type;
    size_t position;
  };

  Walk(const SchemaClasses& classes, Place field)
      : classes_(classes), schema_(classes.schema_), field_(field) {}

  // Reads an attribute without calling __getattribute__, which unions define.
  static Ref attribute(PyObject* object, PyObject* name) {
    return Ref::steal(PyObject_GenericGetAttr(object, name));
  }

  // Returns the position of the field that is set in a union.
  static size_t set_field(const TypeInfo& declared, const Class& info, PyObject* object) {
    PyObject* found = PyObject_GenericGetAttr(object, tag_name());
    if (found == nullptr) {
      PyErr_Clear();
      raise(PyExc_RuntimeError, "Please use %s.create to instantiate the union type.",
            declared.name.c_str());
    }
    const Ref tag = Ref::steal(found);
    const auto known = std::find(info.hashes.begin(), info.hashes.end(), kept_hash(tag.get()));
    const int position = known != info.hashes.end() ? static_cast<int>(known - info.hashes.begin())
                                                    : declared.find(Text(tag.get()).view());
    if (position < 0) {
      raise(PyExc_AttributeError, "%s does not have a field %R", declared.name.c_str(), tag.get());
    }
    return static_cast<size_t>(position);
  }

  // Raises TypeError if `object` does not have the shape. `shape` must not be optional.
  void check_shape(Shape shape, PyObject* object) const {
    if (fits(shape, object)) return;
    constexpr const char* kNames[] = {"bool", "int", "float", "str", "None", "list", "dict"};
    const bool is_object = shape.kind == Kind::kRecord || shape.kind == Kind::kUnion;
    raise(
        PyExc_TypeError, "%s.%s cannot be %s, expected %s", field_.type->name.c_str(),
        field_.type->fields[field_.position].name.c_str(), Py_TYPE(object)->tp_name,
        is_object ? schema_.type(shape.of).name.c_str() : kNames[static_cast<size_t>(shape.kind)]);
  }

  const SchemaClasses& classes_;
  const Schema& schema_;
  Place field_;  // the field that is read now, for errors

 private:
  bool fits(Shape shape, PyObject* object) const {
    const bool is_integer = PyLong_Check(object) && !PyBool_Check(object);
    switch (shape.kind) {
      case Kind::kRecord:
      case Kind::kUnion:
        return Py_TYPE(object) == as_type(classes_.classes_[shape.of].type.get());
      case Kind::kString:
        return PyUnicode_Check(object);
      case Kind::kBool:
        return PyBool_Check(object);
      case Kind::kInt:
        return is_integer;
      case Kind::kFloat:
        return PyFloat_Check(object) || is_integer;
      case Kind::kList:
        return PyList_Check(object) || PyTuple_Check(object);
      default:
        return PyDict_Check(object);
    }
  }
};

// Checks and copies values in a graph's tables, such as a TensorMeta; copies share immutable
// objects. The recursion is not deep, because no class of these values contains itself.
class SchemaClasses::Copier : Walk {
 public:
  Copier(const SchemaClasses& classes, Place field) : Walk(classes, field) {}

  Ref copy(uint16_t shape_id, PyObject* object) {
    const Shape shape = schema_.shape(shape_id);
    if (shape.kind == Kind::kOptional) {
      return object == Py_None ? Ref::borrow(object) : copy(shape.of, object);
    }
    check_shape(shape, object);
    switch (shape.kind) {
      case Kind::kRecord:
      case Kind::kUnion:
        return instance(shape.of, object);
      case Kind::kList:
        return list(shape.of, object);
      default:
        FXPRESS_CHECK(shape.kind != Kind::kMap, "an entry of a graph's tables contains a map");
        return Ref::borrow(object);
    }
  }

 private:
  Ref instance(uint16_t type, PyObject* object) {
    const TypeInfo& declared = schema_.type(type);
    const Class& info = classes_.classes_[type];
    const auto field = [&](size_t i) {
      field_ = {&declared, i};
      return copy(declared.fields[i].shape, attribute(object, info.names[i].get()).get());
    };
    if (declared.is_union) {
      const size_t position = set_field(declared, info, object);
      return new_union(info, position, field(position).get());
    }
    Ref result = new_object(info.type.get());
    for (size_t i = 0; i < info.names.size(); ++i) {
      set_attribute(result.get(), info.names[i].get(), field(i).get());
    }
    return result;
  }

  Ref list(uint16_t of, PyObject* object) {
    const Place place = field_;
    Ref result = Ref::steal(PySequence_List(object));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(result.get()); ++i) {
      field_ = place;
      Ref item = copy(of, PyList_GET_ITEM(result.get(), i));
      check(PyList_SetItem(result.get(), i, item.release()));
    }
    return result;
  }
};

// Writes objects to a sink. `Out` is the sink's concrete class, so calls are not virtual.
template <class Out>
class SchemaClasses::Writer : Walk {
 public:
  // kept: null, or the list that write_for_order() returns.
  Writer(const SchemaClasses& classes, Out& sink, std::vector<Ref>* kept)
      : Walk(classes, {}), sink_(sink), kept_(kept) {}

  void instance(uint16_t type, PyObject* object) {
    const RecursionGuard guard(" in an object of the schema");
    core::check_stack("an object of the schema");
    const TypeInfo& declared = schema_.type(type);
    const Class& info = classes_.classes_[type];
    if (declared.is_union) {
      const size_t position = set_field(declared, info, object);
      sink_.begin_union(declared, position);
      field(declared, info, position, object);
      return sink_.end_union();
    }
    sink_.begin_record(declared);
    for (size_t i = 0; i < info.names.size(); ++i) {
      sink_.field(i);
      if (kept_ != nullptr && declared.fields[i].id == schema::Field::Node_metadata) {
        sink_.begin_map();
        sink_.end_map();
        continue;
      }
      field(declared, info, i, object);
    }
    sink_.end_record();
  }

 private:
  void field(const TypeInfo& declared, const Class& info, size_t position, PyObject* object) {
    field_ = {&declared, position};
    value(declared.fields[position].shape, attribute(object, info.names[position].get()).get());
  }

  void value(uint16_t shape_id, PyObject* object) {
    const Shape shape = schema_.shape(shape_id);
    if (shape.kind == Kind::kOptional) {
      return object == Py_None ? sink_.null() : value(shape.of, object);
    }
    check_shape(shape, object);
    switch (shape.kind) {
      case Kind::kRecord:
      case Kind::kUnion:
        return instance(shape.of, object);
      case Kind::kString:
        return sink_.string(Text(object).view());
      case Kind::kBool:
        return sink_.boolean(object == Py_True);
      case Kind::kFloat:
        if (PyFloat_Check(object)) return sink_.real(PyFloat_AS_DOUBLE(object));
        [[fallthrough]];
      case Kind::kInt:
        if constexpr (std::is_same_v<Out, DocumentBuilder>) {
          int overflow = 0;
          const long long member = PyLong_AsLongLongAndOverflow(object, &overflow);
          if (!PyLong_CheckExact(object) && overflow == 0) return sink_.member(member);
        }
        return write_integer(object, sink_);
      case Kind::kList:
        return list(shape.of, object);
      default:
        return map(shape.of, object);
    }
  }

  void list(uint16_t of, PyObject* object) {
    const Place place = field_;
    sink_.begin_list();  // Python code may change the list, so its size is read each time
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(object); ++i) {
      field_ = place;
      value(of, Ref::borrow(PySequence_Fast_GET_ITEM(object, i)).get());
    }
    sink_.end_list();
  }

  void map(uint16_t of, PyObject* object) {
    const Place place = field_;
    const bool is_of_graph = place.type == &schema_.type(schema::Type::Graph);
    sink_.begin_map();
    const Ref items = pairs_of(object);
    for (PyObject* item : items_of(items.get())) {
      field_ = place;
      sink_.key(Text(PyTuple_GET_ITEM(item, 0)).view());
      if (kept_ != nullptr && is_of_graph) {
        keep(of, PyTuple_GET_ITEM(item, 1));
      } else {
        value(of, PyTuple_GET_ITEM(item, 1));
      }
    }
    sink_.end_map();
  }

  void keep(uint16_t of, PyObject* object) {
    if constexpr (std::is_same_v<Out, DocumentBuilder>) {
      Copier copier(classes_, field_);
      sink_.kept(kept_->size());
      kept_->push_back(copier.copy(of, object));
    }
  }

  Out& sink_;
  std::vector<Ref>* const kept_;  // see the constructor
};

template <class Out>
void SchemaClasses::write(PyObject* object, Out& sink) const {
  Writer<Out>(*this, sink, nullptr).instance(type_of(object), object);
}

template void SchemaClasses::write(PyObject*, DocumentBuilder&) const;
template void SchemaClasses::write(PyObject*, schema::JsonWriter&) const;

std::vector<Ref> SchemaClasses::write_for_order(PyObject* object, DocumentBuilder& sink) const {
  std::vector<Ref> kept;
  Writer<DocumentBuilder>(*this, sink, &kept).instance(type_of(object), object);
  return kept;
}

uint16_t SchemaClasses::type_of(PyObject* object) const {
  const auto found = ids_.find(Py_TYPE(object));
  if (found == ids_.end()) {
    raise(PyExc_TypeError, "%s is not a class of the schema", Py_TYPE(object)->tp_name);
  }
  return static_cast<uint16_t>(found->second);
}

}  // namespace fxpress::serde
