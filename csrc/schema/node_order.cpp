#include "schema/node_order.h"

#include <algorithm>
#include <compare>
#include <numeric>
#include <queue>

#include "schema/canonical.h"
#include "schema/names_in.h"

namespace fxpress::schema {

namespace {

std::string quoted(std::string_view text) {
  return '\'' + std::string(text) + '\'';
}

class NodeOrder {
 public:
  NodeOrder(const Document& document, const Value& graph, std::span<const Value* const> inputs,
            const Constants& constants)
      : document_(document),
        nodes_(document.children(document.field(graph, Field::Graph_nodes))),
        constants_(constants) {
    values_.reserve(2 * nodes_.size() + inputs.size());
    for (const Value* input : inputs) {
      for_each_name(*input, [&](std::string_view name) {
        if (!name.empty()) values_.insert_or_assign(name, Definition{Definition::kInput});
      });
    }
    define();
    connect();
    for (const Value* input : inputs) {
      for_each_name(*input, [&](std::string_view name) { rank(name); });
    }
  }

  Positions sort() {
    Positions order;
    order.reserve(nodes_.size());
    const auto later = [this](uint32_t a, uint32_t b) { return comes_before(b, a); };
    std::priority_queue<uint32_t, Positions, decltype(later)> candidates(later);
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      if (waits_for_[i] == 0) candidates.push(i);
    }
    while (!candidates.empty()) {
      const uint32_t position = candidates.top();
      candidates.pop();
      order.push_back(position);
      for (const Value& output : list(nodes_[position], Field::Node_outputs)) {
        for_each_name(output, [&](std::string_view name) { rank(name); });
      }
      for (uint32_t i = first_user_[position]; i < first_user_[position + 1]; ++i) {
        if (--waits_for_[users_[i]] == 0) candidates.push(users_[i]);
      }
    }
    if (order.size() != nodes_.size()) {
      throw CanonicalError("expected " + std::to_string(nodes_.size()) + " sorted nodes, got " +
                           std::to_string(order.size()));
    }
    return order;
  }

  // Returns the new names of the values; call sort() first.
  Renamed renamed() { return Renamed(std::move(values_)); }

 private:
  struct Argument {
    std::string_view name;
    uint32_t first;  // position in parts_ of the first value that it refers to
  };

  // Calls each(name) for each name, which may be empty, that append_names() finds.
  template <class Each>
  void for_each_name(const Value& argument, Each&& each) {
    found_.clear();
    append_names(document_, argument, found_);
    for (const std::string_view name : found_) each(name);
  }

  std::span<const Value> list(const Value& record, Field field) const {
    return document_.children(document_.field(record, field));
  }

  void define() {
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      for (const Value& output : list(nodes_[i], Field::Node_outputs)) {
        for_each_name(output, [&](std::string_view name) {
          if (name.empty()) return;
          const auto [at, added] = values_.emplace(name, Definition{i});
          if (!added && at->second.node != Definition::kInput) {
            throw CanonicalError("symbol " + quoted(name) + " already in def_table");
          }
          at->second.node = i;
        });
      }
    }
  }

  void connect() {
    waits_for_.resize(nodes_.size());
    first_user_.resize(nodes_.size() + 1);
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      first_argument_.push_back(static_cast<uint32_t>(arguments_.size()));
      for (const Value& input : list(nodes_[i], Field::Node_inputs)) {
        arguments_.push_back({document_.text(document_.field(input, Field::NamedArgument_name)),
                              static_cast<uint32_t>(parts_.size())});
        for_each_name(document_.field(input, Field::NamedArgument_arg),
                      [&](std::string_view name) { parts_.push_back(definition(name)); });
      }
      for (size_t part = parts_of(i); part < parts_.size(); ++part) {
        if (!is_of_node(parts_[part])) continue;
        ++first_user_[parts_[part]->node + 1];
        ++waits_for_[i];
      }
    }
    first_argument_.push_back(static_cast<uint32_t>(arguments_.size()));
    arguments_.push_back({{}, static_cast<uint32_t>(parts_.size())});
    std::partial_sum(first_user_.begin(), first_user_.end(), first_user_.begin());
    users_.resize(first_user_.back());
    Positions next(first_user_.begin(), first_user_.end() - 1);
    for (uint32_t i = 0; i < nodes_.size(); ++i) {
      for (size_t part = parts_of(i); part < parts_of(i + 1); ++part) {
        if (is_of_node(parts_[part])) users_[next[parts_[part]->node]++] = i;
      }
    }
  }

  size_t parts_of(uint32_t node) const {
    const uint32_t argument = first_argument_[node];
    return argument < arguments_.size() ? arguments_[argument].first : parts_.size();
  }

  static bool is_of_node(const Definition* value) {
    return value != nullptr && value->node != Definition::kInput;
  }

  // Returns the definition of the value with a name; null for a constant or an empty name.
  const Definition* definition(std::string_view name) const {
    if (name.empty() || constants_.contains(name)) return nullptr;
    const auto found = values_.find(name);
    if (found == values_.end()) {
      throw CanonicalError("symbol " + quoted(name) + " not in def_table or graph_inputs");
    }
    return &found->second;
  }

  void rank(std::string_view name) {
    if (name.empty()) return;
    Definition& value = values_.at(name);
    if (value.rank >= 0) throw CanonicalError("symbol " + quoted(name) + " already in rank");
    value.rank = ranked_++;
  }

  // Whether node `a` precedes node `b` in canonical order. All their arguments must have ranks.
  bool comes_before(uint32_t a, uint32_t b) const {
    if (const auto order = target(a) <=> target(b); order != 0) return order < 0;
    const uint32_t end_of_a = first_argument_[a + 1], end_of_b = first_argument_[b + 1];
    uint32_t left = first_argument_[a], right = first_argument_[b];
    for (; left < end_of_a && right < end_of_b; ++left, ++right) {
      const auto order = compare(left, right);
      if (order != 0) return order < 0;
    }
    if (left < end_of_a || right < end_of_b) return left == end_of_a;
    return a < b;
  }

  std::string_view target(uint32_t node) const {
    return document_.text(document_.field(nodes_[node], Field::Node_target));
  }

  std::strong_ordering compare(uint32_t left, uint32_t right) const {
    if (const auto order = arguments_[left].name <=> arguments_[right].name; order != 0) {
      return order;
    }
    const auto ranks = [this](uint32_t argument) {
      return std::span(parts_).subspan(arguments_[argument].first,
                                       arguments_[argument + 1].first - arguments_[argument].first);
    };
    const auto a = ranks(left), b = ranks(right);
    const auto rank_of = [](const Definition* value) { return value ? value->rank : -1; };
    return std::lexicographical_compare_three_way(
        a.begin(), a.end(), b.begin(), b.end(),
        [&](const Definition* x, const Definition* y) { return rank_of(x) <=> rank_of(y); });
  }

  const Document& document_;
  std::span<const Value> nodes_;          // nodes of the graph
  const Constants& constants_;            // names that no node or input defines
  Definitions values_;                    // definitions of the graph's values
  Positions first_argument_;              // by node, with an end entry: position in arguments_
  std::vector<Argument> arguments_;       // arguments of all nodes, with an end entry
  std::vector<const Definition*> parts_;  // definition() of all names in arguments, in order
  Positions first_user_;                  // by node, with an end entry: position in users_
  Positions users_;                       // by defining node: the node of each use of its results
  std::vector<size_t> waits_for_;         // by node: number of its uses of values without a rank
  int64_t ranked_ = 0;                    // number of values with a rank
  std::vector<std::string_view> found_;   // reused by for_each_name()
};

}  // namespace

OrderedNodes order_nodes(const Document& document, const Value& graph,
                         std::span<const Value* const> inputs, const Constants& constants) {
  NodeOrder ordering(document, graph, inputs, constants);
  Positions order = ordering.sort();
  return {std::move(order), ordering.renamed()};
}

}  // namespace fxpress::schema
