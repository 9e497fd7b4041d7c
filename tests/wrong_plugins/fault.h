/* Which rule this library breaks. The objects are compiled once; each plugin adds one line that names its fault. */
#pragma once

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
extern const char qe_fault[];
#ifdef __cplusplus
}
#endif

static inline int qe_fault_is(const char* name) { return strcmp(qe_fault, name) == 0; }
