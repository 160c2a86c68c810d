#include "schema/graph_hash.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <optional>
#include <utility>

#include "core/budget.h"
#include "core/string_pool.h"
#include "core/text_hash.h"
#include "schema/canonical.h"
#include "schema/signature.h"

namespace fxpress::schema {

namespace {

constexpr std::string_view kVersion = "fxpress graph 1";
constexpr uint32_t kNoSet = std::numeric_limits<uint32_t>::max();  // Named::set before definition
constexpr uint32_t kPending = kNoSet - 1;                          // Named::set during definition
constexpr std::string_view kMessage = "assert_msg";
constexpr size_t kMaxNesting = 256;  // depth of subgraphs and arguments

// Whether a higher-order operator may return inputs of its subgraph, or views of them.
bool returns_views(std::string_view target) {
  return target.find("wrap") != target.npos || target.find("checkpoint") != target.npos;
}

// Splits the arguments of an expression in sympy.srepr's notation at the commas outside brackets
// and quotes.
std::vector<std::string_view> split_arguments(std::string_view text) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '\'') quoted = !quoted;
    if (!quoted && c == '(') ++depth;
    if (!quoted && c == ')') --depth;
    if (i < text.size() && (quoted || depth != 0 || c != ',')) continue;
    while (start < i && text[start] == ' ') ++start;
    parts.push_back(text.substr(start, i - start));
    start = i + 1;
  }
  return parts;
}

class GraphHasher {
 public:
  GraphHasher(const Document& document, const HashContext& context)
      : document_(document), context_(context) {
    for (const auto& [target, traits] : context.traits) traits_.emplace(target, &traits);
  }

  GraphHash program();

 private:
  // The side effects of a node, or of all nodes of a graph together.
  struct SideEffects {
    bool writes = false, random = false, effectful = false;
    bool runs_graph = false;
    SideEffects& operator|=(const SideEffects& other) {
      writes |= other.writes;
      random |= other.random;
      effectful |= other.effectful;
      runs_graph |= other.runs_graph;
      return *this;
    }
  };
  // A named value of a graph.
  struct Named {
    const Value* meta = nullptr;  // its entry in a table of the graph, such as tensor_values
    Digest maker{};               // hash of the node or input that defines it
    uint32_t index = 0;           // position among the results of the maker
    uint32_t set = kNoSet;        // id of the set of values that may share storage with this value
  };
  struct HashScope {
    core::StringPool names;
    std::vector<Named> values;  // by id in `names`
    // Returns the id of a name. For a new name, adds a value that is not defined yet.
    uint32_t id(std::string_view name) {
      const uint32_t id = names.intern(name).value();
      if (id >= values.size()) values.resize(id + 1);
      return id;
    }
    Digest sum{};                // sum of the hashes of all nodes
    std::optional<Digest> mode;  // hash of the last node that changed a mode
    Digest random{};             // hash of the last node that drew random numbers
    Digest effect{};             // hash of the last node with a side effect
    SideEffects side_effects;    // side effects of all nodes
  };
  enum class Names { kUse, kDefine };

  const Value& field(const Value& record, Field name) const {
    return document_.field(record, name);
  }
  std::string_view text(const Value& value) const { return document_.text(value); }

  void open(HashScope& scope, const Value& graph);
  void define_results(const Digest& maker, std::optional<uint32_t> set);
  void add(Hasher& hasher, const Value& value, Names names);
  void add_record(Hasher& hasher, const Value& value, Names names);
  void add_name(Hasher& hasher, std::string_view name, Names names);
  void add_expression(Hasher& hasher, std::string_view text);
  void add_symbol(Hasher& hasher, std::string_view name);
  void add_known(Hasher& hasher, const Value& name);
  Digest subgraph(const Value& graph);
  Digest node(const Value& node);
  Digest input(const Value& spec, const Value& argument, size_t& users, size_t& tokens);
  Digest output(const SpecInfo& info, const Value& spec);
  Digest call(const Value& entry);
  Digest range(std::string_view name, const Value& limits);

  // Hashes which values may share storage. sets: for each value, the id of its set; see Named::set.
  void add_sharing(Hasher& hasher, const std::vector<uint32_t>& sets);
  uint32_t find(uint32_t set);
  uint32_t new_set();
  uint32_t merge(uint32_t a, uint32_t b);

  const Document& document_;
  const HashContext& context_;
  core::TextViewMap<const OperatorTraits*> traits_;  // properties of operators, by target
  HashScope* scope_ = nullptr;
  size_t depth_ = 0;
  std::vector<uint32_t> parents_;                // union-find forest of sets
  std::unordered_map<uint32_t, Digest> states_;  // by set: hash of its last write
  core::TextMap<Digest> symbols_;                // hashes of the symbols that are defined so far
  std::vector<std::string_view> new_symbols_;    // symbols that the current node or input defines
  std::vector<uint32_t> results_;                // values that the current node or input defines
  std::vector<uint32_t> touched_;                // sets of the values in the current argument
  bool in_call_ = false;  // hashing a module call, which may contain names of removed values
  SideEffects inner_;     // side effects of the subgraphs that the current node runs
};

uint32_t GraphHasher::find(uint32_t set) {
  while (parents_[set] != set) set = parents_[set] = parents_[parents_[set]];
  return set;
}

void GraphHasher::add_sharing(Hasher& hasher, const std::vector<uint32_t>& sets) {
  std::unordered_map<uint32_t, size_t> first;
  for (const uint32_t set : sets) hasher.size(first.emplace(find(set), first.size()).first->second);
}

uint32_t GraphHasher::new_set() {
  parents_.push_back(static_cast<uint32_t>(parents_.size()));
  return parents_.back();
}

uint32_t GraphHasher::merge(uint32_t a, uint32_t b) {
  a = find(a);
  b = find(b);
  if (a == b) return a;
  const auto first = states_.find(a);
  const auto second = states_.find(b);
  if (second != states_.end()) {
    Digest state = second->second;
    if (first != states_.end()) {
      const auto& [low, high] = std::minmax(first->second, second->second);
      Hasher hasher("both");
      hasher.digest(low);
      hasher.digest(high);
      state = hasher.finish();
    }
    states_[a] = state;
  }
  parents_[b] = a;
  return a;
}

void GraphHasher::open(HashScope& scope, const Value& graph) {
  scope.values.reserve(document_.children(field(graph, Field::Graph_tensor_values)).size());
  for (const Field name : {Field::Graph_tensor_values, Field::Graph_sym_int_values,
                           Field::Graph_sym_float_values, Field::Graph_sym_bool_values}) {
    const auto entries = document_.children(field(graph, name));
    for (size_t i = 0; i < entries.size(); i += 2) {
      const uint32_t id = scope.id(text(entries[i]));
      scope.values[id].meta = &entries[i + 1];
    }
  }
}

// Completes the results of the current node or input. maker: the hash of this node or input. set:
// the set of values that may share storage with all results; nullopt: a new set for each result.
void GraphHasher::define_results(const Digest& maker, std::optional<uint32_t> set) {
  for (uint32_t i = 0; i < results_.size(); ++i) {
    Named& value = scope_->values[results_[i]];
    value.maker = maker;
    value.index = i;
    value.set = set ? *set : new_set();
  }
  results_.clear();
  for (size_t i = 0; i < new_symbols_.size(); ++i) {
    Hasher hasher("symbol");
    hasher.digest(maker);
    hasher.size(i);
    symbols_.emplace(new_symbols_[i], hasher.finish());
  }
  new_symbols_.clear();
}

void GraphHasher::add_name(Hasher& hasher, std::string_view name, Names names) {
  const uint32_t id = scope_->id(name);
  Named& value = scope_->values[id];
  if (names == Names::kDefine) {
    if (value.set != kNoSet)
      throw CanonicalError("the graph has two values named " + std::string(name));
    value.set = kPending;
    results_.push_back(id);
    if (value.meta != nullptr) add(hasher, *value.meta, Names::kDefine);
    return;
  }
  if (value.set >= kPending) {
    if (in_call_) return hasher.text(name);
    throw CanonicalError("the graph does not have a value named " + std::string(name));
  }
  hasher.digest(value.maker);
  hasher.size(value.index);
  const uint32_t set = find(value.set);
  touched_.push_back(set);
  if (states_.empty()) return hasher.byte(0);
  const auto state = states_.find(set);
  hasher.byte(state != states_.end() ? 1 : 0);
  if (state != states_.end()) hasher.digest(state->second);
}

// Hashes a symbol by the node or input in which it first occurs and by its position there.
void GraphHasher::add_symbol(Hasher& hasher, std::string_view name) {
  const auto known = symbols_.find(std::string(name));
  if (known != symbols_.end()) return hasher.digest(known->second);
  const auto at = std::find(new_symbols_.begin(), new_symbols_.end(), name);
  hasher.size(static_cast<size_t>(at - new_symbols_.begin()));
  if (at == new_symbols_.end()) new_symbols_.push_back(name);
}

// Hashes an expression such as "Add(Integer(2), Symbol('s0', integer=True))". Sums the hashes of
// the arguments of commutative operators, because sympy orders these arguments by name.
void GraphHasher::add_expression(Hasher& hasher, std::string_view text) {
  constexpr std::string_view kUnordered[] = {"Add", "Mul", "Max", "Min",      "And",
                                             "Or",  "Eq",  "Ne",  "Equality", "Unequality"};
  const size_t open = text.find('(');
  if (open == std::string_view::npos || text.back() != ')') return hasher.text(text);
  if (depth_ == kMaxNesting) throw CanonicalError("an expression is nested too deeply");
  ++depth_;
  const std::string_view head = text.substr(0, open);
  hasher.text(head);
  const auto parts = split_arguments(text.substr(open + 1, text.size() - open - 2));
  hasher.size(parts.size());
  const bool unordered =
      std::find(std::begin(kUnordered), std::end(kUnordered), head) != std::end(kUnordered);
  Digest sum{};
  for (const std::string_view part : parts) {
    if (head == "Symbol" && part.starts_with('\'')) {
      add_symbol(hasher, part.substr(1, part.size() - 2));
    } else if (unordered) {
      Hasher term("term");
      add_expression(term, part);
      accumulate(sum, term.finish());
    } else {
      add_expression(hasher, part);
    }
  }
  if (unordered) hasher.digest(sum);
  --depth_;
}

// Adds the digest of a constant, parameter or buffer, if HashContext::values contains it.
void GraphHasher::add_known(Hasher& hasher, const Value& name) {
  const auto known = context_.values.find(std::string(text(name)));
  hasher.byte(known != context_.values.end() ? 1 : 0);
  if (known != context_.values.end()) hasher.digest(known->second);
}

void GraphHasher::add_record(Hasher& hasher, const Value& value, Names names) {
  const auto is = [&](Type type) { return value.type == static_cast<uint16_t>(type); };
  if (is(Type::TensorArgument)) {
    return add_name(hasher, text(field(value, Field::TensorArgument_name)), names);
  }
  if (is(Type::TokenArgument)) {
    return add_name(hasher, text(field(value, Field::TokenArgument_name)), names);
  }
  if (is(Type::CustomObjArgument)) {
    const Value& name = field(value, Field::CustomObjArgument_name);
    hasher.text(text(field(value, Field::CustomObjArgument_class_fqn)));
    const bool defined = scope_->values[scope_->id(text(name))].set < kPending;
    if (names == Names::kUse && !defined) return add_known(hasher, name);  // a constant
    return add_name(hasher, text(name), names);
  }
  if (is(Type::SymExpr)) {  // leave out the hint, which depends on the example inputs
    return add_expression(hasher, text(field(value, Field::SymExpr_expr_str)));
  }
  if (is(Type::GraphArgument)) {
    return hasher.digest(subgraph(field(value, Field::GraphArgument_graph)));
  }
  for (const Value& part : document_.children(value)) add(hasher, part, names);
}

void GraphHasher::add(Hasher& hasher, const Value& value, Names names) {
  hasher.byte(static_cast<uint8_t>(value.kind));
  switch (value.kind) {
    case ValueKind::kNull:
      return;
    case ValueKind::kBool:
    case ValueKind::kInt:
      return hasher.integer(value.integer);
    case ValueKind::kReal:
      return hasher.real(value.real);
    case ValueKind::kBigInt:
    case ValueKind::kString:
      return hasher.text(text(value));
    case ValueKind::kUnion: {
      const Field tag = document_.tag(value);
      if (tag == Field::kUnknown) {
        throw CanonicalError("the schema has a field that fxpress does not know");
      }
      hasher.size(static_cast<uint64_t>(tag));
      const Value& content = document_.content(value);
      if (tag == Field::SymIntArgument_as_name || tag == Field::SymFloatArgument_as_name ||
          tag == Field::SymBoolArgument_as_name) {
        return add_name(hasher, text(content), names);
      }
      if (tag == Field::SymInt_as_expr || tag == Field::SymFloat_as_expr ||
          tag == Field::SymBool_as_expr) {
        return add_record(hasher, content, names);
      }
      return add(hasher, content, names);
    }
    case ValueKind::kRecord:
      hasher.size(value.type);
      return add_record(hasher, value, names);
    default:
      if (depth_ == kMaxNesting) throw CanonicalError("arguments are nested too deeply");
      ++depth_;
      hasher.size(value.count);
      for (const Value& part : document_.children(value)) add(hasher, part, names);
      --depth_;
  }
}

Digest GraphHasher::node(const Value& node) {
  static const OperatorTraits kPure;
  const std::string_view target = text(field(node, Field::Node_target));
  const auto found = traits_.find(target);
  const OperatorTraits& traits = found != traits_.end() ? *found->second : kPure;
  const auto is_among = [](const std::vector<std::string>& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  Hasher hasher("node");
  hasher.text(target);
  add(hasher, field(node, Field::Node_is_hop_single_tensor_return), Names::kUse);
  std::vector<uint32_t> taken, written, aliased;  // sets of all, written and aliased arguments
  inner_ = {};
  const auto inputs = document_.children(field(node, Field::Node_inputs));
  hasher.size(inputs.size());
  for (const Value& input : inputs) {
    const std::string_view name = text(field(input, Field::NamedArgument_name));
    touched_.clear();
    hasher.text(name);
    if (name == kMessage) continue;  // skip the message: it contains names of nodes and symbols
    add(hasher, field(input, Field::NamedArgument_arg), Names::kUse);
    if (is_among(traits.written, name)) {
      written.insert(written.end(), touched_.begin(), touched_.end());
    }
    if (is_among(traits.aliased, name)) {
      aliased.insert(aliased.end(), touched_.begin(), touched_.end());
    }
    taken.insert(taken.end(), touched_.begin(), touched_.end());
  }
  SideEffects effects = inner_;
  // The hasher does not track which inputs a subgraph writes or returns, so it assumes all inputs.
  if (effects.writes || (effects.runs_graph && returns_views(target))) aliased = taken;
  if (effects.writes) written = taken;
  effects.writes |= !written.empty();
  if (effects.writes) add_sharing(hasher, taken);
  effects.random |= traits.random;
  effects.effectful |= traits.effectful;
  hasher.byte(scope_->mode ? 1 : 0);
  if (scope_->mode) hasher.digest(*scope_->mode);
  if (effects.random) hasher.digest(scope_->random);
  if (effects.effectful) hasher.digest(scope_->effect);
  add(hasher, field(node, Field::Node_outputs), Names::kDefine);
  const Digest made = hasher.finish();
  std::optional<uint32_t> shared;
  if (results_.empty()) aliased.clear();
  for (const uint32_t set : aliased) shared = shared ? merge(*shared, set) : set;
  define_results(made, shared);
  if (traits.changes_mode) scope_->mode = made;
  if (effects.random) scope_->random = made;
  if (effects.effectful) scope_->effect = made;
  std::unordered_set<uint32_t> marked;
  for (size_t i = 0; i < written.size(); ++i) {
    const uint32_t set = find(written[i]);
    if (!marked.insert(set).second) continue;
    Hasher state("write");
    state.digest(made);
    state.size(i);
    states_[set] = state.finish();
  }
  effects.runs_graph = false;
  scope_->side_effects |= effects;
  accumulate(scope_->sum, made);
  return made;
}

// Returns the hash of a subgraph. It does not depend on the values that callers pass to the graph.
Digest GraphHasher::subgraph(const Value& graph) {
  core::check_stack("nested graphs");
  if (depth_ == kMaxNesting) throw CanonicalError("graphs are nested too deeply");
  ++depth_;
  HashScope scope;
  HashScope* const outer = std::exchange(scope_, &scope);
  auto outer_results = std::exchange(results_, {});
  auto outer_symbols = std::exchange(new_symbols_, {});
  auto outer_touched = std::exchange(touched_, {});
  const SideEffects outer_effects = inner_;
  open(scope, graph);
  Hasher hasher("graph");
  size_t position = 0;
  for (const Value& argument : document_.children(field(graph, Field::Graph_inputs))) {
    Hasher input("graph input");
    input.size(position++);
    add(input, argument, Names::kDefine);
    const Digest made = input.finish();
    define_results(made, std::nullopt);
    hasher.digest(made);
  }
  for (const Value& each : document_.children(field(graph, Field::Graph_nodes))) node(each);
  add(hasher, field(graph, Field::Graph_outputs), Names::kUse);
  add(hasher, field(graph, Field::Graph_is_single_tensor_return), Names::kUse);
  hasher.digest(scope.sum);
  scope_ = outer;
  results_ = std::move(outer_results);
  new_symbols_ = std::move(outer_symbols);
  touched_ = std::move(outer_touched);
  inner_ = outer_effects;
  inner_ |= scope.side_effects;
  inner_.runs_graph = true;
  --depth_;
  return hasher.finish();
}

Digest GraphHasher::input(const Value& spec, const Value& argument, size_t& users, size_t& tokens) {
  const SpecInfo* info = find_spec(document_.tag(spec));
  if (info == nullptr) throw CanonicalError("the signature has an input of an unknown kind");
  Hasher hasher("input");
  hasher.text(info->hash_word);
  const Value& content = document_.content(spec);
  switch (info->target_type) {
    case SpecTarget::kState:
      hasher.text(text(field(content, info->target)));
      if (info->tag == Field::InputSpec_buffer) {
        add(hasher, field(content, Field::InputToBufferSpec_persistent), Names::kUse);
      }
      add_known(hasher, field(content, info->target));
      break;
    case SpecTarget::kConstant:
      add_known(hasher, field(content, info->target));
      break;
    default:
      hasher.size(info->argument_type == SpecArgument::kToken ? tokens++ : users++);
  }
  add(hasher, argument, Names::kDefine);
  const Digest made = hasher.finish();
  define_results(made, std::nullopt);
  return made;
}

Digest GraphHasher::output(const SpecInfo& info, const Value& spec) {
  Hasher hasher("output");
  hasher.text(info.hash_word);
  const Value& content = document_.content(spec);
  if (info.target_type == SpecTarget::kState) {
    hasher.text(text(field(content, info.target)));
  } else if (info.target_type == SpecTarget::kInput) {
    add_name(hasher, text(field(content, info.target)), Names::kUse);
  }
  add(hasher, field(content, info.argument), Names::kUse);
  return hasher.finish();
}

Digest GraphHasher::call(const Value& entry) {
  Hasher hasher("call");
  hasher.text(text(field(entry, Field::ModuleCallEntry_fqn)));
  in_call_ = true;
  add(hasher, field(entry, Field::ModuleCallEntry_signature), Names::kUse);
  in_call_ = false;
  return hasher.finish();
}

Digest GraphHasher::range(std::string_view name, const Value& limits) {
  Hasher hasher("range");
  const auto is_letter = [](char c) {
    return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  while (!name.empty()) {  // `name` is an expression of symbols, numbers and operators
    const auto end = std::find_if(name.begin(), name.end(),
                                  [&](char c) { return is_letter(c) != is_letter(name[0]); });
    const std::string_view part(name.begin(), end);
    const auto known = symbols_.find(std::string(part));
    if (known != symbols_.end()) {
      hasher.digest(known->second);
    } else {
      hasher.text(part);
    }
    name.remove_prefix(part.size());
  }
  add(hasher, limits, Names::kUse);
  return hasher.finish();
}

GraphHash GraphHasher::program() {
  const Value& root = document_.root();
  const Value& module = field(root, Field::ExportedProgram_graph_module);
  const Value& graph = field(module, Field::GraphModule_graph);
  const Value& signature = field(module, Field::GraphModule_signature);
  HashScope scope;
  scope_ = &scope;
  open(scope, graph);
  GraphHash result;
  Hasher whole(kVersion);

  const auto specs = document_.children(field(signature, Field::GraphSignature_input_specs));
  const auto arguments = document_.children(field(graph, Field::Graph_inputs));
  if (specs.size() != arguments.size()) {
    throw CanonicalError("the signature has " + std::to_string(specs.size()) +
                         " inputs, but the graph has " + std::to_string(arguments.size()));
  }
  Digest inputs{};
  size_t user_inputs = 0;
  size_t tokens = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    accumulate(inputs, input(specs[i], arguments[i], user_inputs, tokens));
  }
  whole.digest(inputs);

  const auto nodes = document_.children(field(graph, Field::Graph_nodes));
  result.nodes.reserve(nodes.size());
  for (const Value& each : nodes) result.nodes.push_back(node(each));
  whole.digest(scope.sum);

  Digest unordered{};
  for (const Value& spec :
       document_.children(field(signature, Field::GraphSignature_output_specs))) {
    const SpecInfo* info = find_spec(document_.tag(spec));
    if (info == nullptr) throw CanonicalError("the signature has an output of an unknown kind");
    const Digest made = output(*info, spec);
    if (info->target_type == SpecTarget::kNone) {
      whole.digest(made);
    } else {
      accumulate(unordered, made);
    }
  }
  touched_.clear();
  add(whole, field(graph, Field::Graph_outputs), Names::kUse);
  add_sharing(whole, touched_);
  add(whole, field(graph, Field::Graph_is_single_tensor_return), Names::kUse);
  for (const Value& entry :
       document_.children(field(module, Field::GraphModule_module_call_graph))) {
    if (field(entry, Field::ModuleCallEntry_signature).kind != ValueKind::kNull) {
      accumulate(unordered, call(entry));
    }
  }
  const auto ranges = document_.children(field(root, Field::ExportedProgram_range_constraints));
  for (size_t i = 0; i < ranges.size(); i += 2) {
    accumulate(unordered, range(text(ranges[i]), ranges[i + 1]));
  }
  whole.digest(unordered);
  add(whole, field(root, Field::ExportedProgram_guards_code), Names::kUse);
  result.program = whole.finish();
  return result;
}

}  // namespace

GraphHash hash_program(const Document& program, const HashContext& context) {
  return GraphHasher(program, context).program();
}

}  // namespace fxpress::schema
