// The final names of a program's nodes.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fxpress::decompose {

// Gives names that are not taken, by the rules of torch's naming of placeholders. They are valid
// until the next call.
class Renamer {
 public:
  // A placeholder that would like to have `name`: a number at its end is a part of it.
  std::string_view placeholder(std::string_view name);

  // Another node, which keeps its name unless a placeholder has it.
  std::string_view node(std::string_view name);

 private:
  bool is_free(std::string_view name) const { return !used_.contains(std::string(name)); }
  std::string_view take(std::string_view name);
  std::string_view take_next(std::string_view base);

  std::unordered_map<std::string, unsigned long> highest_;  // base -> the highest number taken
  std::unordered_set<std::string> used_;                    // names taken
};

}  // namespace fxpress::decompose
