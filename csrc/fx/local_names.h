// Source text up to the choice of its local names.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fxpress::fx {

// Stands before every local name in a text under construction. It cannot be part of a repr, and
// attribute names that contain it are left to torch.
constexpr char kLocalMark = '\x01';

// The text as it is meant.
std::string without_marks(std::string_view marked);

struct TextShape {
  std::string key;                      // numbers and lengths in place of the local names
  std::vector<std::string_view> names;  // the local names by number; they point into the text
};

// Texts of equal key mean the same up to their local names, and so does the code that they compile
// to. Nothing for a text in which a local name says more than which local is meant, or which is
// longer than is worth remembering.
std::optional<TextShape> text_shape(std::string_view marked);

}  // namespace fxpress::fx
