#include "fx/codegen.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/characters.h"
#include "core/graph.h"
#include "fx/arguments.h"
#include "fx/names.h"
#include "fx/reader.h"
#include "fx/source_parts.h"
#include "fx/symbols.h"
#include "py/calls.h"
#include "py/instance_dict.h"

namespace fxpress::fx {

using core::NodeId;
using core::Op;
using core::StringId;

namespace {

// Thrown if only torch's generator can write the source of a graph.
struct NotPlain {};

constexpr int kMaxDepth = 100;                      // maximum depth of nested arguments
constexpr size_t kMostArguments = size_t{1} << 26;  // maximum number of arguments, with repetitions

bool is_identifier(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), core::is_name_part)) {
    return !text.empty() && !core::is_digit(text[0]);
  }
  const Ref string = new_string(text);
  return PyUnicode_IsIdentifier(string.get()) == 1;
}

class Generator {
 public:
  Generator(PyObject* graph, std::optional<TreeInputs> tree)
      : tree_(std::move(tree)),
        source_(read_graph(graph, InputOrder::kInputNodes)),
        dying_(core::last_uses(source_.graph)),
        names_(NameWriter::Forbidden::kForSource),
        node_names_(source_.graph.size()) {
    names_.begin_graph();
    add_base_globals();
  }

  PythonSource run() {
    for (uint32_t i = 0; i < source_.graph.size(); ++i) {
      poll_signals(i);
      starts_.push_back(body_.size());
      PyObject* node = source_.nodes[i];
      if (node_field(node, symbols.node_type_expr).get() != Py_None) throw NotPlain();
      emit(NodeId(i), node);
    }
    if (starts_.empty()) body_ = "pass\n";
    return assemble();
  }

 private:
  // Adds the globals that every generated source has: inf, nan, torch, device, ...
  void add_base_globals() {
    const Ref base = call(symbols.base_globals);
    globals_ = Ref::steal(PyDict_Copy(base.get()));
    global_names_ = Ref::steal(PyDict_New());
    for (const auto& [name, value] : DictRange(base.get())) {
      names_.table().create(names_.candidate(name), true);
      check(PyDict_SetItem(global_names_.get(), value, name));
    }
  }

  std::string_view node_name(NodeId id) {
    StringId& name = node_names_[id.value()];
    if (!name.valid()) {
      const Ref wish = node_field(source_.nodes[id.value()], symbols.node_name);
      name = names_.table().create(names_.candidate(wish.get()));
    }
    return names_.text(name);
  }

  void append_node(PyObject* node) {
    const uint32_t id = source_.nodes.find(node);
    if (id == core::FlatMap::kAbsent) throw NotPlain();
    append_local(node_name(NodeId(id)));
  }

  void append_local(std::string_view name) {
    body_ += kLocalMark;
    body_ += name;
  }

  // Returns the name of the global `object`. A new global gets the name `wish` or a similar name.
  std::string global_name(PyObject* object, const std::string& wish) {
    if (PyObject* known = dict_get(global_names_.get(), object)) return std::string(utf8(known));
    const StringId candidate = names_.table().legal(names_.intern(wish));
    PyObject* owner = dict_get(symbols.illegal_names, names_.string(candidate));
    PyObject* name = names_.string(names_.table().create(candidate, owner == object));
    check(PyDict_SetItem(global_names_.get(), object, name));
    check(PyDict_SetItem(globals_.get(), name, object));
    return std::string(utf8(name));
  }

  std::string function_name(PyObject* function) {
    const TargetText& target = describe_target(function);
    return target.kind == TargetKind::kQualified ? target.text : global_name(function, target.text);
  }

  // ---- writing arguments ----

  void append_python_repr(PyObject* object) {
    const Ref text = Ref::steal(PyObject_Repr(object));
    body_ += utf8(text.get());
  }

  // repr() of a complex number loses the sign of zero, and is not valid source if a part is not
  // finite. For such numbers, newer releases of torch write a call of complex().
  void append_complex(PyObject* number) {
    const Py_complex parts = PyComplex_AsCComplex(number);
    const bool is_exact = parts.real != 0.0 && parts.imag != 0.0 && std::isfinite(parts.real) &&
                          std::isfinite(parts.imag);
    if (is_exact || symbols.complex_calls != Py_True) return append_python_repr(number);
    body_ += "complex(";
    append_python_repr(Ref::steal(PyFloat_FromDouble(parts.real)).get());
    body_ += ", ";
    append_python_repr(Ref::steal(PyFloat_FromDouble(parts.imag)).get());
    body_ += ')';
  }

  template <class Item>
  void append_sequence(PyObject* sequence, const char* open, const char* close, Item item) {
    ArgCursor cursor{sequence, arg_kind(sequence)};
    body_ += open;
    const char* separator = "";
    while (PyObject* child = cursor.next()) {
      body_ += separator;
      item(child);
      separator = ", ";
    }
    body_ += close;
  }

  // Appends an argument. in_dict: whether a dict contains it. torch writes dict items by repr().
  void append_argument(PyObject* object, int depth = 0, bool in_dict = false) {
    if (depth > kMaxDepth) throw NotPlain();
    if (++arguments_ > kMostArguments) {
      raise(PyExc_ValueError,
            "cannot generate code: the arguments of the graph's nodes have more than %zu items",
            kMostArguments);
    }
    if (is_node(object)) {
      append_node(object);
      return;
    }
    const Ref held = Ref::borrow(object);  // because repr() may run Python code
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    const auto item = [&](PyObject* child) { append_argument(child, depth + 1, in_dict); };
    switch (arg_kind(object)) {
      case ArgKind::kTuple:
        if (!PyTuple_CheckExact(object) && (in_dict || find_attr(object, names.fields))) {
          throw NotPlain();
        }
        append_sequence(object, "(", PyTuple_GET_SIZE(object) == 1 ? ",)" : ")", item);
        return;
      case ArgKind::kList:
        if (!PyList_CheckExact(object) && type != symbols.immutable_list_type) throw NotPlain();
        append_sequence(object, "[", "]", item);
        return;
      case ArgKind::kSlice:
        append_sequence(object, "slice(", ")", item);
        return;
      case ArgKind::kDict:
        append_dict(object, depth);
        return;
      case ArgKind::kLeaf:
        break;
    }
    const bool is_plain = contains(symbols.plain_repr_types, type);
    if (PyComplex_CheckExact(object) && !in_dict) {
      append_complex(object);
    } else if (is_plain || (in_dict && is_operator(object))) {
      append_python_repr(object);
    } else if (is_operator(object)) {
      body_ += function_name(object);
    } else {
      throw NotPlain();
    }
  }

  static bool is_operator(PyObject* object) {
    return is_a(object, symbols.op_overload_type) || is_a(object, symbols.hop_type);
  }

  void append_dict(PyObject* object, int depth) {
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
    if (!PyDict_CheckExact(object) && type != symbols.immutable_dict_type) throw NotPlain();
    body_ += '{';
    const char* separator = "";
    for (DictItems items(object); items.next();) {
      body_ += separator;
      append_argument(items.key(), depth + 1, true);
      body_ += ": ";
      append_argument(items.value(), depth + 1, true);
      separator = ", ";
    }
    body_ += '}';
  }

  void append_call_arguments(PyObject* args, PyObject* kwargs, Py_ssize_t first) {
    body_ += '(';
    const char* separator = "";
    for (Py_ssize_t i = first; i < PyTuple_GET_SIZE(args); ++i) {
      body_ += separator;
      append_argument(PyTuple_GET_ITEM(args, i));
      separator = ", ";
    }
    for (DictItems items(kwargs); items.next();) {
      body_ += separator;
      const Ref name = Ref::steal(PyObject_Str(items.key()));
      if (utf8(name.get()).find(kLocalMark) != std::string_view::npos) throw NotPlain();
      body_ += utf8(name.get());
      body_ += " = ";
      append_argument(items.value());
      separator = ", ";
    }
    body_ += ')';
  }

  // Appends a format such as "{} + {}", with `args` in place of each {}.
  void append_format(std::string_view format, PyObject* args) {
    Py_ssize_t operand = 0;
    for (size_t at = 0;;) {
      const size_t hole = format.find("{}", at);
      body_ += format.substr(at, hole - at);
      if (hole == std::string_view::npos) return;
      if (operand >= PyTuple_GET_SIZE(args)) throw NotPlain();
      append_argument(PyTuple_GET_ITEM(args, operand++));
      at = hole + 2;
    }
  }

  // Appends the attributes in a dotted path to the expression that starts at `start` in body_. Uses
  // getattr() for names that are not valid after a dot.
  void append_path(size_t start, std::string_view path) {
    for (size_t at = 0;;) {
      const size_t dot = path.find('.', at);
      const std::string_view part = path.substr(at, dot - at);
      if (part.find(kLocalMark) != std::string_view::npos) throw NotPlain();
      if (is_identifier(part) && !core::is_keyword(part)) {
        body_ += '.';
        body_ += part;
      } else {
        body_.insert(start, "getattr(");
        body_ += ", \"";
        append_escaped(part);
        body_ += "\")";
      }
      if (dot == std::string_view::npos) return;
      at = dot + 1;
    }
  }

  // Appends `text` with the escapes of a string literal in double quotes.
  void append_escaped(std::string_view text) {
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        body_ += '\\';
        body_ += c;
      } else if (c >= 0 && c < ' ') {
        constexpr std::string_view kDigits = "0123456789abcdef";
        body_ += "\\x";
        body_ += kDigits[static_cast<size_t>(c) >> 4];
        body_ += kDigits[static_cast<size_t>(c) & 15];
      } else {
        body_ += c;
      }
    }
  }

  // ---- writing statements ----

  void emit(NodeId id, PyObject* node) {
    const Ref args = node_field(node, symbols.node_args);
    const Ref kwargs = node_field(node, symbols.node_kwargs);
    if (!PyTuple_Check(args.get()) || !PyDict_Check(kwargs.get())) throw NotPlain();
    PyObject* target = source_.targets[source_.graph.targets[id.value()]];
    switch (source_.graph.ops[id.value()]) {
      case Op::kPlaceholder:
        emit_placeholder(id, target, args.get());
        return;
      case Op::kOutput:
        if (PyTuple_GET_SIZE(args.get()) == 0) throw NotPlain();
        emit_output(PyTuple_GET_ITEM(args.get(), 0));
        return;
      case Op::kCallFunction:
        emit_function(id, node, target, args.get(), kwargs.get());
        break;
      case Op::kCallMethod:
        if (PyTuple_GET_SIZE(args.get()) == 0) throw NotPlain();
        start_assignment(id);
        append_below(target, [&] { append_argument(PyTuple_GET_ITEM(args.get(), 0)); });
        append_call_arguments(args.get(), kwargs.get(), 1);
        break;
      case Op::kCallModule:
        start_assignment(id);
        append_below(target, [&] { append_local("self"); });
        append_call_arguments(args.get(), kwargs.get(), 0);
        break;
      case Op::kGetAttr:
        start_assignment(id);
        append_below(target, [&] { append_local("self"); });
        break;
    }
    end_statement(id, node);
  }

  void emit_output(PyObject* value) {
    const bool is_built = tree_ && tree_->builds_outputs;
    body_ += is_built ? "return pytree.tree_unflatten(" : "return ";
    append_argument(value);
    if (is_built) {
      body_ += ", ";
      append_local("self");
      body_ += "._out_spec)";
    }
    body_ += '\n';
  }

  template <class Base>
  void append_below(PyObject* path, Base base) {
    const size_t start = body_.size();
    base();
    append_path(start, utf8(path));
  }

  void start_assignment(NodeId id) {
    append_local(node_name(id));
    body_ += " = ";
  }

  void emit_placeholder(NodeId id, PyObject* target, PyObject* args) {
    std::string parameter(utf8(target));
    if (parameter.find(kLocalMark) != std::string::npos) throw NotPlain();
    std::string raw;
    for (char c : parameter) {
      if (c != '*') raw += c;
    }
    if (raw == parameter) {
      parameter.insert(0, 1, kLocalMark);
    } else {
      has_unmarked_parameters_ = true;
    }
    if (PyTuple_GET_SIZE(args) > 0) {
      // The argument of a placeholder is its default value, which is written in the signature.
      std::string body = std::move(body_);
      body_.clear();
      append_argument(PyTuple_GET_ITEM(args, 0));
      parameter += " = " + body_;
      body_ = std::move(body);
      has_defaults_ = true;
    }
    parameters_.push_back(std::move(parameter));
    if (raw == node_name(id)) return;
    start_assignment(id);
    append_local(raw);
    body_ += '\n';
  }

  void emit_function(NodeId id, PyObject* node, PyObject* target, PyObject* args,
                     PyObject* kwargs) {
    if (symbols.boxed_arguments == Py_True && has_boxes(node, target)) throw NotPlain();
    const TargetText text = describe_target(target);  // copied, as later calls overwrite the result
    if (text.kind == TargetKind::kOperator) {
      start_assignment(id);
      append_format(text.text, args);
      return;
    }
    if (text.kind == TargetKind::kInplace) {
      append_format(text.text, args);
      body_ += ";  ";
      start_assignment(id);
      if (PyTuple_GET_SIZE(args) == 0) throw NotPlain();
      append_argument(PyTuple_GET_ITEM(args, 0));
      return;
    }
    const std::string function =
        text.kind == TargetKind::kQualified ? text.text : global_name(target, text.text);
    start_assignment(id);
    if (function == "getattr" && is_attribute_access(args)) {
      append_below(PyTuple_GET_ITEM(args, 1), [&] { append_argument(PyTuple_GET_ITEM(args, 0)); });
      return;
    }
    body_ += function;
    append_call_arguments(args, kwargs, 0);
    note_wrapped(node, function);
  }

  // Returns whether the meta of the node, or its function, lists arguments that the generated code
  // must free before the call.
  static bool has_boxes(PyObject* node, PyObject* target) {
    Ref indices = find_meta(node, names.boxed_arg_indices);
    if (!indices) indices = find_attr(target, names.target_boxed_arg_indices);
    return indices && is_true(indices.get());
  }

  // Returns whether getattr(*args) can be written as x.name.
  static bool is_attribute_access(PyObject* args) {
    if (PyTuple_GET_SIZE(args) != 2) return false;
    PyObject* name = PyTuple_GET_ITEM(args, 1);
    return PyUnicode_Check(name) && PyUnicode_IsIdentifier(name) == 1;
  }

  // Records a function that torch.fx.wrap has marked as a leaf, so that the generated source marks
  // it again.
  void note_wrapped(PyObject* node, const std::string& function) {
    const Ref mark = find_meta(node, names.is_wrapped);
    if (!mark || !is_true(mark.get())) return;
    if (std::find(wrapped_.begin(), wrapped_.end(), function) == wrapped_.end()) {
      wrapped_.push_back(function);
    }
  }

  // Ends the statement of a node. Appends an assignment of None to variables without later uses.
  void end_statement(NodeId id, PyObject* node) {
    const auto begin = dying_.dead.begin() + dying_.begin[id.value()];
    const auto end = dying_.dead.begin() + dying_.begin[id.value() + 1];
    const bool unused = PyDict_GET_SIZE(dict_field(node, symbols.node_users).get()) == 0;
    if (begin == end && !unused) {
      body_ += '\n';
      return;
    }
    body_ += ";  ";
    for (auto dead = begin; dead != end; ++dead) start_assignment(*dead);
    if (unused) start_assignment(id);
    body_ += "None\n";
  }

  // ---- joining the parts of the source ----

  PythonSource assemble() {
    // torch's generator numbers lines by such comments, so only it can write a body that has one.
    if (body_.find("# COUNTER: ") != std::string::npos) throw NotPlain();
    std::string wrap;
    for (const std::string& function : wrapped_) {
      if (!wrap.empty()) wrap += '\n';
      wrap += function_name(symbols.fx_wrap) + "(\"" + function + "\")";
    }
    const std::string prologue = this->prologue();
    const auto newlines = [](const std::string& s) { return std::count(s.begin(), s.end(), '\n'); };
    std::string marked = '\n' + wrap + "\n\n" + prologue + '\n';
    Ref line_numbers = Ref::steal(PyDict_New());
    append_lines(marked, line_numbers.get(), newlines(prologue) + 1);

    const auto prologue_start = static_cast<Py_ssize_t>(newlines(wrap)) + 4;
    Ref shape = Ref::borrow(Py_None);
    Ref locals = Ref::borrow(no_args);
    const bool is_bare = !has_unmarked_parameters_ && !has_defaults_ && wrapped_.empty();
    const std::optional<TextShape> described = is_bare ? text_shape(marked) : std::nullopt;
    if (described) {
      const std::string& key = described->key;
      shape =
          Ref::steal(PyBytes_FromStringAndSize(key.data(), static_cast<Py_ssize_t>(key.size())));
      locals = cpython::make_tuple(described->names.size(),
                                   [&](size_t i) { return new_string(described->names[i]); });
    }
    return {new_string(without_marks(marked)),
            std::move(globals_),
            std::move(line_numbers),
            prologue_start,
            std::move(shape),
            std::move(locals)};
  }

  std::string prologue() {
    if (tree_) {
      if (has_defaults_ || has_unmarked_parameters_) throw NotPlain();
      return tree_prologue(*tree_, parameters_);
    }
    std::string text = "def forward(";
    const std::string self = {kLocalMark, 's', 'e', 'l', 'f'};
    if (parameters_.empty() || (parameters_[0] != self)) {
      parameters_.insert(parameters_.begin(), self);
    }
    for (size_t i = 0; i < parameters_.size(); ++i) {
      if (i > 0) text += ", ";
      text += parameters_[i];
    }
    return text + "):";
  }

  // Appends the indented body to `text`, and records the node of each line in `line_numbers`.
  void append_lines(std::string& text, PyObject* line_numbers, Py_ssize_t first_line) {
    text.reserve(text.size() + body_.size() + 4 * (starts_.size() + 2));
    bool leading = true;  // empty lines at the start are counted, but not written
    size_t node = 0;
    for (size_t at = 0; at != std::string::npos; ++first_line) {
      while (node < starts_.size() && starts_[node] <= at) ++node;
      const Ref line = Ref::steal(PyLong_FromSsize_t(first_line));
      const Ref index = node == 0 ? Ref::borrow(Py_None) : Ref::steal(PyLong_FromSize_t(node - 1));
      check(PyDict_SetItem(line_numbers, line.get(), index.get()));
      const size_t end = body_.find('\n', at);
      const std::string_view content = std::string_view(body_).substr(at, end - at);
      const bool last = end == std::string::npos;
      if (!leading || !content.empty() || last) {
        text += "    ";
        text += content;
        if (!last) text += '\n';
        leading = false;
      }
      at = last ? std::string::npos : end + 1;
    }
  }

  std::optional<TreeInputs> tree_;        // how inputs are flattened; empty without flattening
  ReadGraph source_;                      // inputs are in the order of Node.all_input_nodes
  core::LastUses dying_;                  // nodes whose values are used for the last time
  NameWriter names_;                      // names of nodes and globals
  std::vector<StringId> node_names_;      // index: node; invalid until its first use
  Ref globals_;                           // dict from names to objects
  Ref global_names_;                      // dict from objects to names
  size_t arguments_ = 0;                  // number of arguments written so far
  std::string body_;                      // the statements, not indented
  std::vector<size_t> starts_;            // index: node; offset of its statement in body_
  std::vector<std::string> parameters_;   // parameters of the generated function
  std::vector<std::string> wrapped_;      // functions to wrap, in order of first use
  bool has_defaults_ = false;             // whether a parameter has a default value
  bool has_unmarked_parameters_ = false;  // whether *args or **kwargs exist; they lack kLocalMark
};

// Returns whether a code generator has its default attributes, with which torch writes the same
// source as Generator. entries: the number of these attributes.
bool is_untouched(PyObject* codegen, Py_ssize_t entries) {
  const Ref state = instance_dict(codegen);
  if (PyDict_GET_SIZE(state.get()) != entries) return false;
  PyObject* transformer = dict_get(state.get(), names.body_transformer);
  PyObject* function = dict_get(state.get(), names.func_name);
  return transformer == Py_None && function != nullptr && PyUnicode_Check(function) &&
         PyUnicode_CompareWithASCIIString(function, "forward") == 0;
}

}  // namespace

std::optional<PythonSource> generate_source(PyObject* graph) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(graph)) != symbols.graph_type) return std::nullopt;
  const Ref codegen = get_attr(graph, names.codegen);
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(codegen.get()));
  const bool is_tree = type == symbols.tree_codegen_type;
  if (!is_tree && type != symbols.codegen_type) return std::nullopt;
  if (!is_untouched(codegen.get(), is_tree ? 3 : 2)) return std::nullopt;
  std::optional<TreeInputs> tree;
  if (is_tree && !(tree = read_tree_inputs(codegen.get()))) return std::nullopt;
  try {
    std::optional<PythonSource> source;
    on_unchanged(graph, [&] {
      try {
        source = Generator(graph, std::move(tree)).run();
      } catch (const NotPlain&) {
        source.reset();
      }
    });
    return source;
  } catch (pybind11::error_already_set& error) {
    // An argument is a node of another graph, whose name only torch's generator writes.
    if (!error.matches(PyExc_KeyError)) throw;
    return std::nullopt;
  }
}

}  // namespace fxpress::fx
