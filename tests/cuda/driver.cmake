# The driver layer on a stand-in for the driver: libcuda.so.1 in a directory of its own, found through the run path of a
# program that is linked with it. Three more libraries, for a program that is not: none that can be loaded, one without
# a function that is needed, one without a function that is not.
function(gsc_standin directory)
  add_library(cuda_${directory} SHARED standin.c)
  target_compile_definitions(cuda_${directory} PRIVATE _POSIX_C_SOURCE=200809L ${ARGN})
  target_include_directories(cuda_${directory} PRIVATE ${PROJECT_SOURCE_DIR}/core)
  target_link_libraries(cuda_${directory} PRIVATE gsc_options)
  set_target_properties(cuda_${directory} PROPERTIES OUTPUT_NAME cuda SOVERSION 1
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/${directory})
endfunction()
gsc_standin(standin)
gsc_standin(emulated)
gsc_standin(without_launch cuLaunchKernel=cuOther)
gsc_standin(without_load cuFuncLoad=cuOther)
# One whose launches compute: the emulated device, with the PTX.
target_sources(cuda_emulated PRIVATE emulated.c emulation.c $<TARGET_OBJECTS:cuda_ptx_kernels>)
target_include_directories(cuda_emulated PRIVATE . ${PROJECT_SOURCE_DIR}/include)
target_compile_options(cuda_emulated PRIVATE -fvisibility=hidden)
target_link_libraries(cuda_emulated PRIVATE m)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/missing/libcuda.so.1 "")

find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)
foreach(name driver absent gpu gpu_bench xla)
  add_executable(cuda_${name} ${name}.c)
  target_compile_definitions(cuda_${name} PRIVATE _POSIX_C_SOURCE=200809L)
  target_include_directories(cuda_${name} PRIVATE ${PROJECT_SOURCE_DIR}/core)
  target_link_libraries(cuda_${name} PRIVATE gradscaler_static gsc_options)
endforeach()
target_link_libraries(cuda_driver PRIVATE cuda_standin)
add_dependencies(cuda_absent cuda_without_launch cuda_without_load)
add_dependencies(cuda_gpu cuda_emulated)
add_dependencies(cuda_gpu_bench cuda_emulated)
# By the names that ci/gpu gives them.
foreach(name gpu gpu_bench)
  set_target_properties(cuda_${name} PROPERTIES OUTPUT_NAME ${name}
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/gpu)
endforeach()
# The handler that Python's binding has; this program is an XLA that calls it.
set(xla ${PROJECT_SOURCE_DIR}/bindings/xla)
target_sources(cuda_xla PRIVATE ${xla}/xla_handler.c)
target_include_directories(cuda_xla PRIVATE ${xla})
add_dependencies(cuda_xla cuda_emulated)

add_test(NAME cuda.driver COMMAND cuda_driver)
add_test(NAME cuda.missing COMMAND cuda_absent "no CUDA driver|libcuda.so.1")
add_test(NAME cuda.without_launch COMMAND cuda_absent "lacks cuLaunchKernel")
add_test(NAME cuda.without_load COMMAND cuda_absent "available")
# Without CUDA the program for a GPU claims nothing.
add_test(NAME cuda.no_gpu COMMAND cuda_gpu)
set_tests_properties(cuda.no_gpu PROPERTIES LABELS cuda PASS_REGULAR_EXPRESSION "^NOT RUN: no CUDA driver"
  ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/missing)
# The public calls on the emulated device against the CPU; states by the recordings.
add_test(NAME cuda.gpu COMMAND cuda_gpu)
add_test(NAME cuda.replay COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/replay/replay.py
  ${PROJECT_SOURCE_DIR}/tests/traces "CUDA=$<TARGET_FILE:cuda_gpu> --replay")
# What ci/gpu does with a device, but for what other tests here do.
add_test(NAME cuda.rehearsal COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/bench/gpu.py
  ${CMAKE_CURRENT_BINARY_DIR}/gpu --short --seconds 600 --without-python "not here"
  --out ${CMAKE_CURRENT_BINARY_DIR}/gpu/report
  --only "open,same bits: streams,rows,fault,ncu,memcheck")
add_test(NAME cuda.report COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/report_test.py)
add_test(NAME cuda.model COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/bench/gpu_model_test.py)
set_tests_properties(cuda.report cuda.model PROPERTIES LABELS cuda)
add_test(NAME cuda.xla COMMAND cuda_xla)
set_tests_properties(cuda.gpu cuda.replay cuda.rehearsal cuda.xla PROPERTIES LABELS cuda
  ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/emulated)
foreach(name missing without_launch without_load)
  set_tests_properties(cuda.${name} PROPERTIES LABELS cuda
    ENVIRONMENT LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/${name})
endforeach()
set_tests_properties(cuda.driver PROPERTIES LABELS cuda)
