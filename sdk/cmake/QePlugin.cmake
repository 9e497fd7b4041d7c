# qe_add_plugin(NAME SOURCES a.cpp ...): a plugin library and its manifest.
#
# Reads plugin.toml beside the calling CMakeLists.txt and writes NAME.so and NAME.qeplugin.toml (the
# same text, with the library's name and sha256) into the folder of QE_PLUGIN_DIR. Exports one symbol.

function(qe_add_plugin name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  set(QE_PLUGIN_CMAKE_DIR ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  if(NOT DEFINED QE_PLUGIN_DIR)
    set(QE_PLUGIN_DIR ${CMAKE_BINARY_DIR}/bin/plugins)
  endif()
  if(NOT DEFINED QE_PLUGIN_INSTALL_DIR)
    set(QE_PLUGIN_INSTALL_DIR lib/qengine/plugins)
  endif()
  add_library(${name} MODULE ${A_SOURCES})
  target_link_libraries(${name} PRIVATE qengine::sdk ${A_DEPS})
  if(TARGET qe_warnings)
    target_link_libraries(${name} PRIVATE qe_warnings)
  endif()
  set_target_properties(${name} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} LIBRARY_OUTPUT_DIRECTORY ${QE_PLUGIN_DIR}
    C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    LINK_DEPENDS ${QE_PLUGIN_CMAKE_DIR}/plugin.version
    SKIP_BUILD_RPATH ON)  # installing must not rewrite the file: the manifest holds its hash
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-gnu-unique>)
  endif()
  target_link_options(${name} PRIVATE -Wl,--version-script=${QE_PLUGIN_CMAKE_DIR}/plugin.version)
  if(NOT QE_SANITIZE)
    target_link_options(${name} PRIVATE -Wl,--no-undefined)
  endif()
  add_custom_command(TARGET ${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -DLIBRARY=$<TARGET_FILE:${name}> -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR}/plugin.toml
            -DOUTPUT=${QE_PLUGIN_DIR}/${name}.qeplugin.toml -P ${QE_PLUGIN_CMAKE_DIR}/write_manifest.cmake
    VERBATIM)
  set_property(TARGET ${name} APPEND PROPERTY LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/plugin.toml)
  if(PROJECT_NAME STREQUAL "qengine")
    set(component plugins)
  else()
    set(component ${PROJECT_NAME})
  endif()
  install(FILES $<TARGET_FILE:${name}> ${QE_PLUGIN_DIR}/${name}.qeplugin.toml
          DESTINATION ${QE_PLUGIN_INSTALL_DIR} COMPONENT ${component})
endfunction()
