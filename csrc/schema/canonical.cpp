#include "schema/canonical.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "core/budget.h"
#include "schema/names_in.h"
#include "schema/node_order.h"
#include "schema/signature.h"

namespace fxpress::schema {

namespace {

// The key by which inputs or outputs of the program are sorted: by SpecInfo::rank, then by the name
// of the parameter, buffer or constant (empty if there is none), then by position.
struct SortKey {
  int rank;
  std::string_view name;
  uint32_t position;

  auto operator<=>(const SortKey&) const = default;
};

class Canonicalizer {
 public:
  Canonicalizer(const Document& document, const Constants& constants)
      : document_(document), schema_(document.schema()), constants_(constants), out_(document) {}

  Document run() {
    record(document_.root(), [&](Field field, const Value& value) {
      switch (field) {
        case Field::ExportedProgram_graph_module:
          return graph_module(value);
        case Field::ExportedProgram_opset_version:
        case Field::ExportedProgram_range_constraints:
          return sorted_map(value, nullptr);
        case Field::ExportedProgram_guards_code: {
          std::vector<std::string_view> guards;
          for (const Value& guard : document_.children(value)) {
            guards.push_back(document_.text(guard));
          }
          std::sort(guards.begin(), guards.end());
          out_.begin_list();
          for (const std::string_view guard : guards) out_.string(guard);
          return out_.end_list();
        }
        default:
          return out_.reuse(value);
      }
    });
    return out_.finish();
  }

  Document run_graph(NewNames& names) {
    const Value& root = document_.root();
    const Renamed renamed =
        graph(root, pointers(root, Field::Graph_inputs), pointers(root, Field::Graph_outputs));
    renamed.for_each(
        [&](std::string_view name, const std::string& made) { names.emplace_back(name, made); });
    return out_.finish();
  }

 private:
  template <class Each>
  void record(const Value& value, Each&& each) {
    const TypeInfo& type = schema_.type(value.type);
    const auto fields = document_.children(value);
    out_.begin_record(type);
    for (size_t i = 0; i < fields.size(); ++i) {
      out_.field(i);
      each(type.fields[i].id, fields[i]);
    }
    out_.end_record();
  }

  // Writes a map, sorted by key. If `renamed` is not null, first replaces the keys by new names.
  void sorted_map(const Value& map, const Renamed* renamed) {
    std::vector<std::pair<std::string_view, const Value*>> entries;
    const auto stored = document_.children(map);
    for (size_t i = 0; i < stored.size(); i += 2) {
      std::string_view key = document_.text(stored[i]);
      if (renamed != nullptr) key = new_name(*renamed, key);
      entries.emplace_back(key, &stored[i + 1]);
    }
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    out_.begin_map();
    for (const auto& [key, value] : entries) {
      out_.key(key);
      out_.reuse(*value);
    }
    out_.end_map();
  }

  static std::string_view new_name(const Renamed& renamed, std::string_view name) {
    const std::string* found = renamed.find(name);
    return found == nullptr ? name : std::string_view(*found);
  }

  void graph_module(const Value& module) {
    const Value& graph = document_.field(module, Field::GraphModule_graph);
    const Value& signature = document_.field(module, Field::GraphModule_signature);
    const auto inputs = document_.children(document_.field(graph, Field::Graph_inputs));
    const auto outputs = document_.children(document_.field(graph, Field::Graph_outputs));
    const auto input_specs =
        document_.children(document_.field(signature, Field::GraphSignature_input_specs));
    const auto output_specs =
        document_.children(document_.field(signature, Field::GraphSignature_output_specs));
    check_length("inputs", inputs.size(), "input_specs", input_specs.size());
    check_length("outputs", outputs.size(), "output_specs", output_specs.size());
    const Positions input_order = order(input_specs);
    const Positions output_order = order(output_specs);
    Renamed renamed;
    record(module, [&](Field field, const Value& value) {
      switch (field) {
        case Field::GraphModule_graph:
          renamed =
              this->graph(value, permute(inputs, input_order), permute(outputs, output_order));
          return;
        case Field::GraphModule_signature:
          return this->signature(value, permute(input_specs, input_order),
                                 permute(output_specs, output_order), renamed);
        case Field::GraphModule_module_call_graph:
          return calls(value);
        default:  // the canonical form omits metadata and fields of namedtuples
          out_.begin_map();
          return out_.end_map();
      }
    });
  }

  static void check_length(const char* what, size_t count, const char* specs, size_t wanted) {
    if (count == wanted) return;
    throw CanonicalError("graph." + std::string(what) + " length " + std::to_string(count) +
                         " != signature." + specs + " length " + std::to_string(wanted));
  }

  static std::vector<const Value*> permute(std::span<const Value> values, const Positions& order) {
    std::vector<const Value*> result;
    result.reserve(order.size());
    for (const uint32_t position : order) result.push_back(&values[position]);
    return result;
  }

  Positions order(std::span<const Value> specs) const {
    std::vector<SortKey> keys;
    keys.reserve(specs.size());
    for (uint32_t i = 0; i < specs.size(); ++i) keys.push_back(sort_key(specs[i], i));
    std::sort(keys.begin(), keys.end());
    Positions result;
    result.reserve(keys.size());
    for (const SortKey& key : keys) result.push_back(key.position);
    return result;
  }

  SortKey sort_key(const Value& spec, uint32_t position) const {
    const SpecInfo* info = find_spec(document_.tag(spec));
    if (info == nullptr) {
      throw CanonicalError("the signature has an entry of an unknown kind: " +
                           schema_.type(spec.type).fields[spec.count].name);
    }
    const bool by_name = info->target != Field::kUnknown && info->target_type != SpecTarget::kInput;
    if (!by_name) return {info->rank, {}, position};
    const Value& name = document_.field(document_.content(spec), info->target);
    return {info->rank, document_.text(name), position};
  }

  void calls(const Value& list) {
    const auto stored = document_.children(list);
    Positions order(stored.size());
    std::iota(order.begin(), order.end(), 0u);
    const auto fqn = [&](uint32_t i) {
      return document_.text(document_.field(stored[i], Field::ModuleCallEntry_fqn));
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return fqn(a) < fqn(b); });
    out_.begin_list();
    for (const uint32_t i : order) out_.reuse(stored[i]);
    out_.end_list();
  }

  Renamed graph(const Value& graph, const std::vector<const Value*>& inputs,
                const std::vector<const Value*>& outputs) {
    core::check_stack("nested graphs");
    const auto nodes = document_.children(document_.field(graph, Field::Graph_nodes));
    OrderedNodes ordered = order_nodes(document_, graph, inputs, constants_);
    const Renamed& renamed = ordered.renamed;
    const auto write = [&](const std::vector<const Value*>& values) {
      out_.begin_list();
      for (const Value* value : values) write_renamed(*value, renamed);
      out_.end_list();
    };
    size_t graphs = 0;
    record(graph, [&](Field field, const Value& value) {
      switch (field) {
        case Field::Graph_inputs:
          return write(inputs);
        case Field::Graph_outputs:
          return write(outputs);
        case Field::Graph_nodes:
          out_.begin_list();
          for (const uint32_t i : ordered.order) node(nodes[i], renamed, graphs);
          return out_.end_list();
        case Field::Graph_is_single_tensor_return:
          return out_.reuse(value);
        default:
          return sorted_map(value, &renamed);
      }
    });
    return std::move(ordered.renamed);
  }

  void node(const Value& node, const Renamed& renamed, size_t& graphs) {
    record(node, [&](Field field, const Value& value) {
      switch (field) {
        case Field::Node_inputs:
          out_.begin_list();
          for (const Value& input : document_.children(value)) this->input(input, renamed, graphs);
          return out_.end_list();
        case Field::Node_outputs:
          return write_renamed(value, renamed);
        case Field::Node_metadata:
          out_.begin_map();
          return out_.end_map();
        default:
          return out_.reuse(value);
      }
    });
  }

  void input(const Value& input, const Renamed& renamed, size_t& graphs) {
    record(input, [&](Field field, const Value& value) {
      if (field != Field::NamedArgument_arg) return out_.reuse(value);
      if (document_.tag(value) != Field::Argument_as_graph) return write_renamed(value, renamed);
      out_.begin_union(schema_.type(value.type), value.count);
      record(document_.content(value), [&](Field part, const Value& held) {
        if (part == Field::GraphArgument_name) return out_.string("_g" + std::to_string(graphs++));
        this->graph(held, pointers(held, Field::Graph_inputs),
                    pointers(held, Field::Graph_outputs));
      });
      out_.end_union();
    });
  }

  std::vector<const Value*> pointers(const Value& record, Field field) const {
    std::vector<const Value*> result;
    for (const Value& value : document_.children(document_.field(record, field))) {
      result.push_back(&value);
    }
    return result;
  }

  // Writes `value`, in which new names replace the names of graph inputs and node results.
  void write_renamed(const Value& value, const Renamed& renamed) {
    core::check_stack("nested values");
    const auto inside =
        value.kind >= ValueKind::kList ? document_.children(value) : std::span<const Value>();
    switch (value.kind) {
      case ValueKind::kList:
        out_.begin_list();
        for (const Value& item : inside) write_renamed(item, renamed);
        return out_.end_list();
      case ValueKind::kMap:
        out_.begin_map();
        for (size_t i = 0; i < inside.size(); i += 2) {
          out_.key(document_.text(inside[i]));
          write_renamed(inside[i + 1], renamed);
        }
        return out_.end_map();
      case ValueKind::kRecord:
        return record(value, [&](Field field, const Value& part) {
          const bool is_name = field == Field::TensorArgument_name ||
                               field == Field::CustomObjArgument_name ||
                               field == Field::TokenArgument_name;
          if (is_name) return out_.string(new_name(renamed, document_.text(part)));
          write_renamed(part, renamed);
        });
      case ValueKind::kUnion: {
        // A subgraph does not use names of the graph that contains it.
        if (document_.tag(value) == Field::Argument_as_graph) return out_.reuse(value);
        out_.begin_union(schema_.type(value.type), value.count);
        if (const std::string_view name = name_of(document_, value);
            !name.empty() && inside[0].kind == ValueKind::kString) {
          out_.string(new_name(renamed, name));
        } else {
          write_renamed(inside[0], renamed);
        }
        return out_.end_union();
      }
      default:
        return out_.reuse(value);
    }
  }

  void signature(const Value& signature, const std::vector<const Value*>& inputs,
                 const std::vector<const Value*>& outputs, const Renamed& renamed) {
    const auto write = [&](const std::vector<const Value*>& specs) {
      out_.begin_list();
      for (const Value* spec : specs) this->spec(*spec, renamed);
      out_.end_list();
    };
    record(signature, [&](Field field, const Value&) {
      write(field == Field::GraphSignature_input_specs ? inputs : outputs);
    });
  }

  void spec(const Value& spec, const Renamed& renamed) {
    const SpecInfo& info = *find_spec(document_.tag(spec));  // sort_key() has checked the tag
    out_.begin_union(schema_.type(spec.type), spec.count);
    record(document_.content(spec), [&](Field field, const Value& value) {
      if (info.target_type == SpecTarget::kInput && field == info.target) {
        return out_.string(known_name(renamed, document_.text(value)));
      }
      if (value.kind == ValueKind::kUnion && value.type == static_cast<uint16_t>(Type::Argument)) {
        const bool may_be_constant = document_.tag(value) == Field::Argument_as_custom_obj;
        const std::string_view name = name_of(document_, document_.content(value));
        if (!name.empty() && !may_be_constant) known_name(renamed, name);
      } else if (const std::string_view name = name_of(document_, value); !name.empty()) {
        known_name(renamed, name);
      }
      write_renamed(value, renamed);
    });
    out_.end_union();
  }

  static std::string_view known_name(const Renamed& renamed, std::string_view name) {
    const std::string* found = renamed.find(name);
    if (found == nullptr) {
      throw UnknownName("the signature contains the name '" + std::string(name) +
                        "', which no value of the graph has");
    }
    return *found;
  }

  const Document& document_;
  const Schema& schema_;
  const Constants& constants_;  // names that no node or input defines; not renamed
  DocumentBuilder out_;         // the canonical form
};

}  // namespace

Document canonicalize(const Document& program, const Constants& constants) {
  return Canonicalizer(program, constants).run();
}

Document canonicalize_graph(const Document& graph, const Constants& constants, NewNames& names) {
  return Canonicalizer(graph, constants).run_graph(names);
}

}  // namespace fxpress::schema
