// Reads the meta of nodes: the modules in which they were traced, and their custom meta.
#pragma once

#include "unflatten/program.h"

namespace fxpress::unflatten {

// Fills in everything of the program that concerns stacks and custom meta.
void read_meta(FlatProgram& program);

}  // namespace fxpress::unflatten
