# libmdops_cuda.so: the CUDA kernels of every op, in a library of its own that is loaded where PyTorch has CUDA.
# It is built without a GPU and against a PyTorch without CUDA.

set(MDOPS_CUDA AUTO CACHE STRING "Build the CUDA library: AUTO (where there are a GPU and nvcc), ON or OFF")
set_property(CACHE MDOPS_CUDA PROPERTY STRINGS AUTO ON OFF)
set(wanted ${MDOPS_CUDA})
if(wanted STREQUAL AUTO AND DEFINED ENV{MDOPS_CUDA})  # where no option is passed on: .ci/run
  set(wanted $ENV{MDOPS_CUDA})
endif()
if(NOT wanted MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "MDOPS_CUDA is ${wanted}, expected AUTO, ON or OFF")
endif()
if(wanted STREQUAL OFF)
  message(STATUS "CUDA library: not built, because MDOPS_CUDA is OFF")
  return()
endif()

# The `a` stands for instructions that only Hopper has: without it spline_potential runs there as on an A100.
set(architectures_of_here "")
if(wanted STREQUAL AUTO)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE capabilities RESULT_VARIABLE failed ERROR_QUIET)
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${capabilities}")
  if(failed OR NOT capabilities)
    message(STATUS "CUDA library: not built, because there is no GPU here; MDOPS_CUDA=ON builds it for others")
    return()
  endif()
  list(TRANSFORM capabilities REPLACE "\\." "")
  list(TRANSFORM capabilities REPLACE "^90$" "90a")
  list(TRANSFORM capabilities APPEND -real)
  list(REMOVE_DUPLICATES capabilities)
  set(architectures_of_here ${capabilities})
endif()

# For the GPUs that are here; with ON machine code for A100 and H100, and PTX that the driver compiles for chips
# to come. For a quick build of one chip set MDOPS_CUDA_ARCHITECTURES=90a-real, as an option of CMake or in the
# environment.
set(default_architectures 80-real 90a-real 90-virtual)
if(DEFINED ENV{MDOPS_CUDA_ARCHITECTURES})
  set(default_architectures $ENV{MDOPS_CUDA_ARCHITECTURES})
elseif(architectures_of_here)
  set(default_architectures ${architectures_of_here})
endif()
set(MDOPS_CUDA_ARCHITECTURES ${default_architectures} CACHE STRING "GPUs to compile for, as CMake names them")
set(CMAKE_CUDA_ARCHITECTURES ${MDOPS_CUDA_ARCHITECTURES})

include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(wanted STREQUAL ON)
    message(FATAL_ERROR "MDOPS_CUDA is ON, but no nvcc is found: put it on PATH, or set CUDACXX to it")
  endif()
  message(STATUS "CUDA library: not built, because no nvcc is found (set CUDACXX to it, or PATH)")
  return()
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
message(STATUS
  "CUDA library: built by nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${MDOPS_CUDA_ARCHITECTURES}")

# The linker must record that libtorch_cuda.so is needed, and a PyTorch without CUDA has none: this stand-in
# has its name and the functions that we call. It is not installed.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/torch_cuda_stub.cpp  # writes only what changed
  CONTENT "extern \"C\" void aoti_torch_get_current_cuda_stream() {}\n")
add_library(torch_cuda_stub SHARED ${CMAKE_BINARY_DIR}/torch_cuda_stub.cpp)
set_target_properties(torch_cuda_stub PROPERTIES
  OUTPUT_NAME torch_cuda LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/stub CXX_VISIBILITY_PRESET default)

# A check at every build: the headers with GPU kernels need nothing of PyTorch (this source is compiled without its
# headers), and any source may include all of them (a library that nobody loads has it beside those that do). One
# architecture will do.
file(GLOB gpu_headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/source/op source/op/*/gpu_*.h)
list(TRANSFORM gpu_headers REPLACE "(.+)" "#include \"\\1\"\n")
list(JOIN gpu_headers "" gpu_headers)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/gpu_headers.cu CONTENT "${gpu_headers}")
add_library(gpu_headers OBJECT ${CMAKE_BINARY_DIR}/gpu_headers.cu)
target_include_directories(gpu_headers PRIVATE source/op)
set_target_properties(gpu_headers PROPERTIES CUDA_ARCHITECTURES 80-virtual)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  set(quickly $<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>)  # with few optimisations
endif()
target_compile_options(gpu_headers PRIVATE ${quickly})

# Linked into both libraries that compute on GPUs.
add_library(gpu_loops OBJECT ${GPU_LOOP_SOURCES})
target_include_directories(gpu_loops PRIVATE source/op)

add_library(mdops_cuda SHARED ${CUDA_SOURCES} $<TARGET_OBJECTS:common> $<TARGET_OBJECTS:gpu_loops>)
target_compile_definitions(mdops_cuda PRIVATE USE_CUDA)
# For machines that run no kernels (.ci/run). Of the environment, so that no build keeps it.
if("$ENV{MDOPS_CUDA_QUICK}")
  set(CMAKE_CUDA_FLAGS_RELEASE "-O0 -DNDEBUG")  # nvcc's own option comes after those of -Xcompiler
endif()
foreach(target mdops_cuda gpu_loops mdops_core)
  if("${MDOPS_CUDA_ARCHITECTURES}" MATCHES "90a")
    target_compile_definitions(${target} PRIVATE MDOPS_HOPPER)
  endif()
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
  if("$ENV{MDOPS_CUDA_QUICK}")
    target_compile_options(${target} PRIVATE ${quickly})
  endif()
endforeach()
# Headers, PyTorch's, CUDA's and those of kernels, take nvcc half of the time of a source: a quick build compiles sources
# together that include the same.
if("$ENV{MDOPS_CUDA_QUICK}")
  set_target_properties(mdops_cuda gpu_loops PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set(of_edges edge_attention edge_convolution edge_environment edge_frames edge_rotation edge_softmax edge_splines edge_update)
  set(of_rows angle_ends angle_products degree_norm grid_product node_update order_mix order_moments own_message scalar_gate so2_layer)
  set(of_moments displacements env_mat harmonic_moment moment_invariants moment_product spline_moment)
  set(of_lists attention graph neighbor ragged_plan rowwise)
  set(of_nets fitting_energy gemm linear message)
  set(of_others angle_moment dynamics lowbit)
  set(of_hosts attention_layer attention_moments axis_product hybrid_potential neighbor_rows pair_table spline_potential)
  foreach(group of_edges of_rows of_moments of_lists of_nets of_others of_hosts)
    foreach(family ${${group}})
      set_source_files_properties(source/op/${family}/cuda.cu PROPERTIES UNITY_GROUP ${group})
    endforeach()
  endforeach()
  set(loops_of_attention attention/gpu_loops attention/gpu_backward attention_layer/gpu_loops)
  set(loops_of_nets gemm/gpu_loops spline_potential/gpu_loops hybrid_potential/gpu_loops type_nets/gpu_loops)
  set(blocks_of_nets gemm/gpu_blocks gemm/gpu_chain)
  set(loops_of_moments displacements/gpu_loops gemm_fp64/gpu_loops moment_product/gpu_loops spline_moment/gpu_loops)
  set(loops_of_rows angle_moment/gpu_loops attention_moments/gpu_loops axis_product/gpu_loops)
  set(types_of_attention attention/cuda_bfloat attention/cuda_double attention/cuda_half attention/cuda_second
      lowbit/cuda_thin lowbit/cuda_wide)
  set(blocks_in_tf32 gemm/cuda_blocks_tf32 gemm/cuda_chain_tf32)
  foreach(group loops_of_attention loops_of_nets blocks_of_nets loops_of_moments loops_of_rows types_of_attention blocks_in_tf32)
    foreach(source ${${group}})
      set_source_files_properties(source/op/${source}.cu PROPERTIES UNITY_GROUP ${group})
    endforeach()
  endforeach()
endif()
target_link_libraries(mdops_cuda PRIVATE build_options quick_options torch_cuda_stub)

# In mdops_cuda itself a driver would find each inline kernel twice, and could run the one that is barely optimised.
add_library(gpu_headers_check SHARED $<TARGET_OBJECTS:gpu_headers> $<TARGET_OBJECTS:mdops_cuda> $<TARGET_OBJECTS:gpu_loops>
  $<TARGET_OBJECTS:common>)
target_link_libraries(gpu_headers_check PRIVATE build_options quick_options torch_cuda_stub)

# Models of the C core on GPUs.
file(GLOB CORE_CUDA_SOURCES CONFIGURE_DEPENDS source/core/*.cu)
target_sources(mdops_core PRIVATE ${CORE_CUDA_SOURCES} $<TARGET_OBJECTS:gpu_loops>)
set_target_properties(mdops_core PROPERTIES CUDA_ARCHITECTURES "${MDOPS_CUDA_ARCHITECTURES}"
  CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_VISIBILITY_PRESET hidden CUDA_RUNTIME_LIBRARY Static)
target_compile_definitions(mdops_core PRIVATE MDOPS_CORE_CUDA)

# What launches nothing itself: the host's compiler takes a third of nvcc's time for it.
set(host_sources ${CUDA_SOURCES} ${CORE_CUDA_SOURCES})
list(FILTER host_sources INCLUDE REGEX
  "op/(attention_layer|attention_moments|axis_product|common|hybrid_potential|neighbor_rows|pair_table|spline_potential)/cuda\\.cu|core/gpu_(angles|base|context|model)\\.cu")
set_source_files_properties(${host_sources} PROPERTIES LANGUAGE CXX)
foreach(target mdops_cuda mdops_core)
  target_include_directories(${target} SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
endforeach()

install(TARGETS mdops_cuda LIBRARY DESTINATION mdops/lib)
# A pair at the cutoff must be decided on the GPU as on the CPU, which contracts no products and sums either, and
# a step must have the same bits in one kernel as in two. Sources that are compiled together have the same options.
set_source_files_properties(source/core/gpu_list.cu PROPERTIES COMPILE_OPTIONS --fmad=false)
if("$ENV{MDOPS_CUDA_QUICK}")
  target_compile_options(mdops_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:--fmad=false>)
else()
  set_source_files_properties(source/op/neighbor/cuda.cu source/op/dynamics/cuda.cu source/op/graph/cuda.cu
                              PROPERTIES COMPILE_OPTIONS --fmad=false)
endif()
