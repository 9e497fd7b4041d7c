# cmake -D SOURCE_DIR= -D IN= -D OUT= -D QE_VERSION= ... -P build_info.cmake
# Runs in every build; the file changes, and only what links it is built again, when the commit does.
execute_process(COMMAND git -C ${SOURCE_DIR} describe --always --abbrev=12 --dirty --exclude=*
                OUTPUT_VARIABLE QE_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if((failed OR NOT QE_COMMIT) AND NOT "$ENV{QE_COMMIT}" STREQUAL "")  # sources without their history
  set(QE_COMMIT "$ENV{QE_COMMIT}")
elseif(failed OR NOT QE_COMMIT)
  set(QE_COMMIT unknown)
endif()
configure_file(${IN} ${OUT} @ONLY)
