# All third-party libraries, in one place. deploy/setup.sh installs them.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(GTest REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(SQLite3 REQUIRED)
find_package(SQLiteCpp REQUIRED)
find_package(mimalloc 2.0 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
add_library(harmony_xxhash ALIAS PkgConfig::XXHASH)
find_program(GRPC_CPP_PLUGIN grpc_cpp_plugin REQUIRED)

if(HARMONY_WITH_TORCH)
  if(NOT EXISTS ${HARMONY_LIBTORCH}/lib/libtorch_cpu.so)
    message(FATAL_ERROR "LibTorch not found in ${HARMONY_LIBTORCH}: run deploy/setup.sh, "
                        "or configure with -DHARMONY_WITH_TORCH=OFF")
  endif()
  # Its include folder carries an old protobuf and another fmt: keep it behind the system's headers.
  add_library(harmony_torch INTERFACE)
  target_compile_options(harmony_torch INTERFACE
    "SHELL:-idirafter ${HARMONY_LIBTORCH}/include"
    "SHELL:-idirafter ${HARMONY_LIBTORCH}/include/torch/csrc/api/include")
  target_link_libraries(harmony_torch INTERFACE
    ${HARMONY_LIBTORCH}/lib/libtorch_cpu.so ${HARMONY_LIBTORCH}/lib/libc10.so)
  get_filename_component(_torch_site ${HARMONY_LIBTORCH} DIRECTORY)
  # CMake has the programs look for these two, and an installation for its own; these know where the rest is.
  target_link_options(harmony_torch INTERFACE -Wl,-rpath-link,${_torch_site}/nvidia/cu13/lib)
endif()

if(HARMONY_CUDA)
  if(NOT EXISTS ${HARMONY_CUDA_INCLUDE}/cuda.h)
    message(FATAL_ERROR "cuda.h not found in ${HARMONY_CUDA_INCLUDE}: run deploy/setup.sh, "
                        "or configure with -DHARMONY_CUDA=OFF")
  endif()
  # What computes on GPUs (worker/cuda) is built where nvcc is.
  get_filename_component(_torch_site ${HARMONY_LIBTORCH} DIRECTORY)
  find_program(HARMONY_NVCC nvcc HINTS ${_torch_site}/nvidia/cu13/bin /usr/local/cuda/bin)
  # Headers only: the driver is opened at run time (common/cuda).
  add_library(harmony_cuda_headers INTERFACE)
  target_include_directories(harmony_cuda_headers SYSTEM INTERFACE ${HARMONY_CUDA_INCLUDE})
endif()
