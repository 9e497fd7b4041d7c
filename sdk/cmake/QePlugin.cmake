# qe_add_plugin(NAME SOURCES a.cpp ... [CUDA_SOURCES a.cu ...]): a plugin library and its manifest.
#
# CUDA_SOURCES are built where the project has CUDA enabled (QE_HAVE_CUDA; qe_enable_cuda()); QE_PLUGIN_CUDA is 1 then, and every
# format of the plugin needs its QE_FORMAT_CUDA among them.
#
# Reads plugin.toml beside the calling CMakeLists.txt and writes NAME.so and NAME.qeplugin.toml (the
# same text, with the library's name and sha256) into the folder of QE_PLUGIN_DIR. Exports one symbol.

function(qe_add_plugin name)
  cmake_parse_arguments(A "" "" "SOURCES;CUDA_SOURCES;DEPS" ${ARGN})
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
  if(QE_HAVE_CUDA AND A_CUDA_SOURCES)
    target_sources(${name} PRIVATE ${A_CUDA_SOURCES})
    target_compile_definitions(${name} PRIVATE QE_PLUGIN_CUDA=1)
    set_target_properties(${name} PROPERTIES CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
    set(unique "-Xcompiler=-fno-gnu-unique;")
    if(CMAKE_CUDA_HOST_COMPILER MATCHES "clang")  # makes no unique symbols, and does not know the flag
      set(unique "")
    endif()
    # Dequantized weights are exact: a product and a sum are two roundings, unless written as one.
    target_compile_options(${name} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;--fmad=false;${unique}-Xcompiler=-ffp-contract=off>")
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
  # The conformance kit, where the program that holds it is at hand: as a target of this build, or installed beside the SDK.
  if(BUILD_TESTING OR QE_BUILD_TESTS)
    set(cases "")
    if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/check.json)
      set(cases --cases ${CMAKE_CURRENT_SOURCE_DIR}/check.json)
    endif()
    if(PROJECT_NAME STREQUAL "qengine")
      set(kit $<TARGET_FILE:qengine>)
    else()
      set(kit ${QENGINE_PROGRAM})
    endif()
    if(kit AND NOT QE_SANITIZE)
      add_test(NAME ${name}_conformance COMMAND ${kit} plugin check $<TARGET_FILE:${name}> ${cases} --notes)
      set_tests_properties(${name}_conformance PROPERTIES LABELS "conformance" TIMEOUT 900)
    endif()
  endif()
  install(FILES $<TARGET_FILE:${name}> ${QE_PLUGIN_DIR}/${name}.qeplugin.toml
          DESTINATION ${QE_PLUGIN_INSTALL_DIR} COMPONENT ${component})
endfunction()
