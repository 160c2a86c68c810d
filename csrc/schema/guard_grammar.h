// The grammar of guards: conditions on the inputs of a program, which torch runs as Python code.
#pragma once

#include <string_view>

namespace fxpress::schema {

// Whether a text is a guard, on one line, as torch writes them:
//
//   guard       a condition of those below
//   conditions  and, or, not, ==, !=, <, <=, >, >=, "a if b else c"
//   numbers     + - * / // % ** << >> & | ^ ~; exponents of powers, and bits of shifts, are sums of
//               small numbers, of inputs and sizes, and of floats, as their results are bounded
//   functions   that are listed in guard_grammar.cpp: max, math.floor, torch.sym_float, ...
//   inputs      L['name'], and of what it holds: ['key'], [0], .attribute, .size(), .stride(),
//               .storage_offset(), .item(), .numel(), .dim()
//   constants   numbers, True, False, None, math.inf, texts without quotes
bool is_guard(std::string_view text);

}  // namespace fxpress::schema
