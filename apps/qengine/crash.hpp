// Says what was running when the program died of SIGSEGV and the like, then lets it die.
#pragma once

namespace qengine {

void install_crash_handler();

}  // namespace qengine
