# libmdops_core.so: models for programs without PyTorch and Python (core.md), of the same objects of loops and
# kernels as libmdops.so.

find_package(Threads REQUIRED)
file(GLOB CORE_SOURCES CONFIGURE_DEPENDS source/core/*.cpp)
set(of_core "/(common/(isa|op)|gemm/bf16_(units|kernel)|spline_potential/spatial_order|(neighbor|spline_potential|spline_dipole|hybrid_potential|pair_table|angle_moment|attention_layer|axis_product|neighbor_rows)/cpu_(loops|kernel))\\.cpp")

add_library(mdops_core SHARED ${CORE_SOURCES}
  $<FILTER:$<TARGET_OBJECTS:common>,INCLUDE,${of_core}>
  $<FILTER:$<TARGET_OBJECTS:loops>,INCLUDE,${of_core}>
  "$<FILTER:${KERNEL_OBJECTS},INCLUDE,${of_core}>")
target_include_directories(mdops_core PRIVATE source)
target_link_libraries(mdops_core PRIVATE host_options quick_options Threads::Threads ${CMAKE_DL_LIBS})
if("$ENV{MDOPS_CPU_QUICK}")
  set_target_properties(mdops_core PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  # Tests load a thousand files, all of whose bytes go through it.
  set_source_files_properties(source/core/sha256.cpp PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON COMPILE_OPTIONS -O2)
endif()
target_link_options(mdops_core PRIVATE -Wl,--as-needed -Wl,-z,defs
  -Wl,--version-script=${CMAKE_SOURCE_DIR}/source/core/exports.map)
set_target_properties(mdops_core PROPERTIES LINK_DEPENDS ${CMAKE_SOURCE_DIR}/source/core/exports.map)
# One file, libmdops_core.so.4: a wheel holds no links. `mdops core --libs` names it.
file(STRINGS source/core/mdops.h api_version REGEX "^#define MDOPS_API_VERSION [0-9]+$")
string(REGEX REPLACE ".* " "" api_version "${api_version}")
set_target_properties(mdops_core PROPERTIES SOVERSION ${api_version})
install(TARGETS mdops_core LIBRARY DESTINATION mdops/lib NAMELINK_SKIP)
install(FILES source/core/mdops.h source/core/mdops.f90 DESTINATION mdops/include)
