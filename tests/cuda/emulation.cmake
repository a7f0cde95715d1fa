# The kernels on an emulated device in the place of the driver, against the CPU: their source as C, and their PTX, which
# is what is shipped, translated to C. That has no warnings to heed, checks its addresses itself, and would take a
# compiler minutes with sanitizers.
find_package(Catch2 REQUIRED)
set(ptx ${PROJECT_SOURCE_DIR}/core/cuda/ptx.c)
add_custom_command(OUTPUT ptx_kernels.c DEPENDS ptx_to_c.py ${ptx}
  COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/ptx_to_c.py ${ptx} ptx_kernels.c)
add_library(cuda_ptx_kernels OBJECT ptx_kernels.c ptx.h)
target_include_directories(cuda_ptx_kernels PRIVATE . ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/include)
target_compile_options(cuda_ptx_kernels PRIVATE -O1 -ffp-contract=off -fwrapv -fno-strict-aliasing -w)
set_target_properties(cuda_ptx_kernels PROPERTIES C_VISIBILITY_PRESET hidden POSITION_INDEPENDENT_CODE ON)
add_executable(cuda_emulation emulation_test.cpp emulation.c kernels.c)
add_executable(cuda_ptx emulation_test.cpp emulation.c $<TARGET_OBJECTS:cuda_ptx_kernels>)
foreach(name emulation ptx)
  target_include_directories(cuda_${name} PRIVATE . ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/tests/core)
  target_link_libraries(cuda_${name} PRIVATE gradscaler_static gsc_options Catch2::Catch2WithMain)
  target_compile_options(cuda_${name} PRIVATE -ffp-contract=off)
  add_test(NAME cuda.${name} COMMAND cuda_${name})
endforeach()
# Against the CPU's best rung, and plain C.
add_test(NAME cuda.emulation_scalar COMMAND cuda_emulation)
set_tests_properties(cuda.emulation cuda.ptx cuda.emulation_scalar PROPERTIES LABELS cuda)
set_tests_properties(cuda.emulation_scalar PROPERTIES ENVIRONMENT GSC_CPU=scalar)
