# CUDA is optional: QE_HAVE_CUDA tells whether nvcc was found. cuBLASLt and cuDNN are opened when needed and never linked.
include(QeEnableCuda)
qe_enable_cuda()
if(QE_HAVE_CUDA)
  find_package(CUDAToolkit REQUIRED)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-ffp-contract=off;-Xcompiler=-Wall>")
endif()
