// The kernels of the format. Heavy to compile, so it is alone here.
#include <qe/format_impl.hpp>

#include "format.hpp"

QE_FORMAT(Hqq4)
