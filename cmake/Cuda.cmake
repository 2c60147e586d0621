# nvcc and the CUDA libraries, for QUIRE_CUDA.

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${QUIRE_CUDA_ARCHITECTURES})
endif()
find_program(QUIRE_NVCC nvcc PATHS ${CUDAToolkit_ROOT} $ENV{CUDA_HOME} /usr/local/cuda PATH_SUFFIXES bin)
if(NOT QUIRE_NVCC)
  message(FATAL_ERROR "QUIRE_CUDA: no nvcc on PATH, in CUDA_HOME or in /usr/local/cuda; "
                      "the other presets need none, they run the kernels under the emulator")
endif()
set(CMAKE_CUDA_COMPILER ${QUIRE_NVCC})
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)
# CMake 3.25 does not know nvcc's option for C++20. --expt-relaxed-constexpr lets kernels call the
# constexpr functions of std.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr -Wno-deprecated-gpu-targets")
