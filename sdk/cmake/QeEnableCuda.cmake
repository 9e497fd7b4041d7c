# qe_enable_cuda(): turns CUDA on where nvcc is found. QE_HAVE_CUDA tells, and everything else builds without it.
#
#   QE_CUDA                AUTO: where nvcc is found; ON: it must be there; OFF
#   QE_CUDA_ARCHITECTURES  the SMs to write machine code for; found in the SDK: those that the program was built for
#
# Call it in the outermost CMakeLists.txt, not in a function. The toolkit's static run-time library is linked, so that
# programs and plugins also start on machines without a driver.
macro(qe_enable_cuda)
  set(QE_CUDA "AUTO" CACHE STRING "Build the CUDA parts: ON, OFF, or AUTO: where nvcc is found")
  set(QE_HAVE_CUDA OFF)
  if(NOT QE_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
        # "90a" alone means its machine code; only the newest of a list also carries PTX.
        list(TRANSFORM QE_CUDA_ARCHITECTURES APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
      endif()
      enable_language(CUDA)
      if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc 12 can
        set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
        set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
      endif()
      set(CMAKE_CUDA_STANDARD 20)
      set(CMAKE_CUDA_STANDARD_REQUIRED ON)
      set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
      set(QE_HAVE_CUDA ON)
    elseif(QE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "QE_CUDA is ON, but nvcc was not found: put it on PATH or set CMAKE_CUDA_COMPILER")
    else()
      message(STATUS "nvcc was not found: the CUDA parts are left out")
    endif()
  endif()
endmacro()
