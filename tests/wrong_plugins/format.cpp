#include <qe/format_impl.hpp>

#include "format.hpp"

QE_FORMAT(Nibbles)
