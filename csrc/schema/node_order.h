// The order of a graph's nodes in its canonical form, and the new names of its values.
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

// The origin of a value of a graph.
struct Definition {
  static constexpr uint32_t kInput = 0xffffffffu;
  uint32_t node;      // position in the graph, or kInput
  int64_t rank = -1;  // how many values come before this one; -1: not known yet
};
using Definitions = core::TextViewMap<Definition>;  // by name

// The values of a graph have new names, which count from 0.
class Renamed {
 public:
  Renamed() = default;
  explicit Renamed(Definitions values) : values_(std::move(values)), names_(values_.size()) {
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = '_' + std::to_string(i);
  }

  // Returns the new name, or null when no value of the graph has the name.
  const std::string* find(std::string_view name) const {
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : &names_[static_cast<size_t>(found->second.rank)];
  }

  // Calls each(name, new name).
  template <class Each>
  void for_each(Each&& each) const {
    for (const auto& [name, value] : values_) each(name, names_[static_cast<size_t>(value.rank)]);
  }

 private:
  Definitions values_;              // all with their ranks
  std::vector<std::string> names_;  // by rank
};

// The positions of a graph's nodes in order: of those whose arguments are there, the one with the
// smallest target, and of these the one whose arguments were there first. CanonicalError for names
// that nothing or more than one value defines, and for cycles.
struct OrderedNodes {
  Positions order;
  Renamed renamed;
};
OrderedNodes order_nodes(const Document& document, const Value& graph,
                         std::span<const Value* const> inputs, const Constants& constants);

}  // namespace fxpress::schema
