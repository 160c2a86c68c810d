// The graph that Dynamo captured, with the inputs and the outputs of what the user calls.
#pragma once

#include <array>

#include "capture/birth_meta.h"

namespace fxpress::capture {

struct RewritePlan {
  Ref inputs;        // list of dict: the meta of each flat input's placeholder, to own
  Ref places;        // list, for each placeholder of the captured graph: int, the input that it is;
                     // str, the attribute of the module that it becomes; None, it stays one
  Ref outputs;       // list of (kind, value), see OutputKind
  Ref module_paths;  // dict: target of call_module -> the path that a tracer finds for the module
  BirthRules birth;
};

enum class OutputKind : uint8_t {
#define FXPRESS_KIND(kind, name) kind,
#include "capture/output_kinds.def"
#undef FXPRESS_KIND
};
inline constexpr std::array kOutputKindNames = {
#define FXPRESS_KIND(kind, name) #name,
#include "capture/output_kinds.def"
#undef FXPRESS_KIND
};

// A GraphModule with the nodes of `module` as torch.fx.Transformer would leave them, and the
// attributes that they mention, without the module that stood around the callable in their names.
// Its code is generated when it is asked for. KeyError, IndexError or ValueError for a plan that
// does not fit the graph.
Ref rewrite_captured(PyObject* module, const RewritePlan& plan);

}  // namespace fxpress::capture
