# The kernels on an emulated device in the place of the driver, against the CPU: their PTX, which is what is shipped,
# translated to C. That has no warnings to heed, checks its addresses itself, and would take a compiler minutes with
# sanitizers; nobody steps through it. cuda_nvcc, built only by its name: what another compiler made of the source, in
# nvcc.ptx of the build folder, and the same tests.
find_package(Catch2 REQUIRED)
function(gsc_ptx name ptx)
  add_custom_command(OUTPUT ${name}_kernels.c DEPENDS ptx_to_c.py ${ptx}
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ptx_to_c.py ${ptx} ${name}_kernels.c)
  add_library(cuda_${name}_kernels OBJECT ${name}_kernels.c ptx.h)
  target_include_directories(cuda_${name}_kernels PRIVATE . ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(cuda_${name}_kernels PRIVATE -O1 -g0 -ffp-contract=off -fwrapv -fno-strict-aliasing -w)
  set_target_properties(cuda_${name}_kernels PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
  add_executable(cuda_${name} emulation_test.cpp emulation.c $<TARGET_OBJECTS:cuda_${name}_kernels>)
endfunction()
gsc_ptx(ptx ${PROJECT_SOURCE_DIR}/core/cuda/ptx.c)
gsc_ptx(nvcc ${PROJECT_BINARY_DIR}/nvcc.ptx)
set_target_properties(cuda_nvcc cuda_nvcc_kernels PROPERTIES EXCLUDE_FROM_ALL TRUE)
foreach(name ptx nvcc)
  target_include_directories(cuda_${name} PRIVATE . ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/tests/core)
  target_link_libraries(cuda_${name} PRIVATE gradscaler_static gsc_options Catch2::Catch2WithMain)
  target_compile_options(cuda_${name} PRIVATE -ffp-contract=off)
endforeach()
add_test(NAME cuda.ptx COMMAND cuda_ptx)
add_test(NAME cuda.barriers COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/barriers.py
  $<TARGET_FILE:cuda_ptx> ${CMAKE_CURRENT_BINARY_DIR}/ptx_kernels.c)
set_tests_properties(cuda.ptx cuda.barriers PROPERTIES LABELS cuda)
