#include "serde/node_names.h"

#include <utility>

#include "fx/reader.h"
#include "fx/symbols.h"
#include "serde/symbols.h"
#include "serde/text.h"

namespace fxpress::serde {

NodeNames::Within::Within(NodeNames& of, const GraphValues& values, PyObject* module)
    : names_(of),
      values_(std::exchange(of.values_, &values)),
      module_(std::exchange(of.module_, module)) {}

NodeNames::Within::~Within() {
  names_.values_ = values_;
  names_.module_ = module_;
}

const NodeEntry& NodeNames::entry_of(PyObject* node) {
  const NodeEntry* entry = values_ == nullptr ? nullptr : values_->find(node);
  if (entry == nullptr) {
    if (alone_ != nullptr && module_ == nullptr) return entry_alone(node);
    raise(PyExc_AssertionError, "node %S is not in the graph that uses it", node);
  }
  return *entry;
}

// Makes the entry of an argument of a part alone from the argument's own value.
const NodeEntry& NodeNames::entry_alone(PyObject* node) {
  Ref name = fx::node_field(node, fx::symbols.node_name);
  if (PyObject* other = dict_get(alone_, name.get())) name = Ref::borrow(other);
  const core::Op op = fx::parse_op(fx::node_field(node, fx::symbols.node_op).get());
  Table table = Table::kTensor;
  const Ref meta = fx::node_field(node, fx::symbols.node_meta);
  if (PyObject* value = dict_get(meta.get(), fx::names.val)) {
    const bool is_object =
        PyObject_TypeCheck(value, as_type(symbols.custom_obj_argument_type)) != 0;
    const Table own = is_object ? Table::kCustomObject : table_of(value);
    if (own != Table::kNone) table = own;
  }
  alone_entries_.push_back({Ref::borrow(node), std::move(name), nullptr, 0,
                            core::PositionTable::kAbsent, op, table, false});
  return alone_entries_.back();
}

const NodeEntry& NodeNames::resolved(PyObject* node) {
  const NodeEntry& entry = entry_of(node);
  if (entry.duplicate_of == core::PositionTable::kAbsent) return entry;
  return values_->entries[entry.duplicate_of];
}

PyObject* NodeNames::tensor_name(PyObject* node) {
  const NodeEntry& entry = resolved(node);
  if (entry.op == core::Op::kGetAttr) {
    raise(symbols.serialize_error,
          "getattr nodes containing tensors should not appear in the graph");
  }
  if (entry.table == Table::kNone) {
    raise(PyExc_AssertionError, "symbol '%U' not in def_table or graph_inputs", entry.name.get());
  }
  return entry.name.get();
}

void NodeNames::remember_merged(const GraphValues& values) {
  for (const NodeEntry& entry : values.entries) {
    if (entry.duplicate_of == core::PositionTable::kAbsent) continue;
    merged_.emplace(utf8(entry.name.get()),
                    Ref::borrow(values.entries[entry.duplicate_of].name.get()));
  }
}

Ref NodeNames::name_of(PyObject* argument) const {
  Ref name = get_attr(argument, fx::names.name);
  if (merged_.empty() || !PyUnicode_Check(name.get())) return name;
  const auto merged = merged_.find(std::string(Text(name.get()).view()));
  return merged == merged_.end() ? std::move(name) : Ref::borrow(merged->second.get());
}

}  // namespace fxpress::serde
