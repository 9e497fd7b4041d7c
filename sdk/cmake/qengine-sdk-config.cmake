# The SDK of qengine, wherever its prefix was moved to.
get_filename_component(_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(NOT TARGET qengine::sdk)
  add_library(qengine::sdk INTERFACE IMPORTED)
  set_target_properties(qengine::sdk PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${_prefix}/include" INTERFACE_COMPILE_FEATURES cxx_std_20)
endif()
unset(_prefix)
include("${CMAKE_CURRENT_LIST_DIR}/QePlugin.cmake")
