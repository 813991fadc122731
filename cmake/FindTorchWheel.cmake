# Links libtorch's CPU half straight from the `torch` wheel of the Python interpreter in use.
# `find_package(Torch)` would drag in the whole CUDA toolkit; a CPU build needs two libraries.
# Defines torch_wheel::torch and halfstep_torch_pch (the shared precompiled header).

execute_process(
  COMMAND ${HALFSTEP_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
  OUTPUT_VARIABLE torch_dir OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0 OR NOT EXISTS ${torch_dir}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no torch wheel in ${HALFSTEP_PYTHON}; run `make setup` first")
endif()
file(READ ${torch_dir}/version.py torch_version_py)
string(REGEX MATCH "__version__ = '([0-9.]+)" _ "${torch_version_py}")
set(HALFSTEP_TORCH_VERSION ${CMAKE_MATCH_1})
message(STATUS "torch ${HALFSTEP_TORCH_VERSION}")

add_library(torch_wheel_torch INTERFACE)
add_library(torch_wheel::torch ALIAS torch_wheel_torch)
# -idirafter, not -isystem: the wheel also ships headers of other libraries (fmt), and the system's
# own, whose libraries we link, must win.
target_compile_options(torch_wheel_torch INTERFACE
  "SHELL:-idirafter ${torch_dir}/include" "SHELL:-idirafter ${torch_dir}/include/torch/csrc/api/include")
target_link_directories(torch_wheel_torch INTERFACE ${torch_dir}/lib)
target_link_libraries(torch_wheel_torch INTERFACE torch_cpu c10)
# The wheel's libraries find their own (nvidia) dependencies by their RUNPATH, but the link editor
# does not look there, so it is told not to resolve symbols of shared libraries.
target_link_options(torch_wheel_torch INTERFACE
  -Wl,-rpath,${torch_dir}/lib -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)

add_library(halfstep_torch_pch STATIC ${CMAKE_CURRENT_LIST_DIR}/torch_pch.cc)
target_link_libraries(halfstep_torch_pch PUBLIC halfstep_options torch_wheel::torch)
target_precompile_headers(halfstep_torch_pch PUBLIC ${CMAKE_CURRENT_LIST_DIR}/torch_pch.h)
