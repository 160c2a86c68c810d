// The modules in which nodes were traced: meta["nn_module_stack"].
#pragma once

#include "fx/unflatten/program.h"

namespace fxpress::fx {

// Fills in everything of the program that concerns stacks.
void read_stacks(FlatProgram& program);

}  // namespace fxpress::fx
