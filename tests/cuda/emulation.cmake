# The kernels as C, on an emulated device in the place of the driver, against the CPU.
find_package(Catch2 REQUIRED)
add_executable(cuda_emulation emulation_test.cpp emulation.c)
target_include_directories(cuda_emulation PRIVATE . ${PROJECT_SOURCE_DIR}/core ${PROJECT_SOURCE_DIR}/tests/core)
target_link_libraries(cuda_emulation PRIVATE gradscaler_static gsc_options Catch2::Catch2WithMain)
target_compile_options(cuda_emulation PRIVATE -ffp-contract=off)
# Against the CPU's best rung, and plain C.
add_test(NAME cuda.emulation COMMAND cuda_emulation)
add_test(NAME cuda.emulation_scalar COMMAND cuda_emulation)
set_tests_properties(cuda.emulation cuda.emulation_scalar PROPERTIES LABELS cuda)
set_tests_properties(cuda.emulation_scalar PROPERTIES ENVIRONMENT GSC_CPU=scalar)
