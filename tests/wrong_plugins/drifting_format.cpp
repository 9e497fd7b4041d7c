#include <qe/format_impl.hpp>

#include "drifting.hpp"

QE_FORMAT(drifting::Format)
