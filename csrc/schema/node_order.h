// Orders a graph's nodes for its canonical form, and renames its values.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/text_hash.h"
#include "schema/document.h"

namespace fxpress::schema {

using Constants = core::TextViewSet;
using Positions = std::vector<uint32_t>;

// The definition of a value in a graph.
struct Definition {
  static constexpr uint32_t kInput = 0xffffffffu;
  uint32_t node;      // position of the defining node in the graph, or kInput
  int64_t rank = -1;  // number of values ranked before this one; -1: no rank yet
};
using Definitions = core::TextViewMap<Definition>;  // by name of the value

// The new names of a graph's values: _0, _1 and so on, by rank.
class Renamed {
 public:
  Renamed() = default;
  explicit Renamed(Definitions values) : values_(std::move(values)), names_(values_.size()) {
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = '_' + std::to_string(i);
  }

  // Returns the new name of a value; null if no value of the graph has the name.
  const std::string* find(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &names_[static_cast<size_t>(found->second.rank)];
  }

  template <class Each>
  void for_each(Each&& each) const {
    for (const auto& [name, value] : values_) each(name, names_[static_cast<size_t>(value.rank)]);
  }

 private:
  Definitions values_;              // every value with its rank
  std::vector<std::string> names_;  // new names, by rank
};

// The result of order_nodes(). It adds one node at a time to `order`, and gives the node's results
// the next numbers as ranks. A node can be added once all its arguments have ranks. Of such nodes,
// the smallest is added, compared by target, and then by the names and ranks of the arguments.
struct OrderedNodes {
  Positions order;
  Renamed renamed;
};
// Throws CanonicalError for names that are undefined or defined twice, and for cycles.
OrderedNodes order_nodes(const Document& document, const Value& graph,
                         std::span<const Value* const> inputs, const Constants& constants);

}  // namespace fxpress::schema
