// The last names of a program's nodes: a node keeps its name unless a placeholder has it.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace fxpress::decompose {

class Renamer {
 public:
  // A placeholder has this name.
  void take(std::string_view name);

  // The name of a node that would like to have `name`. Valid until the next call.
  std::string_view give(std::string_view name);

 private:
  std::string_view keep(std::string_view name);

  std::unordered_map<std::string, unsigned long> highest_;  // base -> the highest number taken
  std::unordered_set<std::string> used_;                    // names taken
};

}  // namespace fxpress::decompose
