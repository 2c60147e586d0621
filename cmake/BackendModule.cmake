# Backends that a program opens at run time (kernels/backend_module.h).

# A module must not be opened by a program that was built with another interface. The build id is a digest of what
# determines the interface: the headers, the version, the compiler and its flags.
file(GLOB quire_interface_headers CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/kernels/ops/*.h ${PROJECT_SOURCE_DIR}/kernels/quant/*.h)
set(quire_build_id_folder ${PROJECT_BINARY_DIR}/generated)
string(SHA256 quire_flags "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} ${CMAKE_CXX_FLAGS} \
${CMAKE_BUILD_TYPE} ${CMAKE_CXX_FLAGS_RELWITHDEBINFO} ${QUIRE_SANITIZE} ${absl_VERSION}")
add_custom_command(
  OUTPUT ${quire_build_id_folder}/kernels/build_id.h
  COMMAND ${CMAKE_COMMAND} -D "HEADERS=${quire_interface_headers}" -D FLAGS=${quire_flags} -D VERSION=${PROJECT_VERSION}
          -D OUTPUT=${quire_build_id_folder}/kernels/build_id.h -P ${PROJECT_SOURCE_DIR}/cmake/WriteBuildId.cmake
  DEPENDS ${quire_interface_headers} ${PROJECT_SOURCE_DIR}/cmake/WriteBuildId.cmake
  VERBATIM)
add_custom_target(quire_build_id_header DEPENDS ${quire_build_id_folder}/kernels/build_id.h)
add_library(quire_build_id INTERFACE)
add_dependencies(quire_build_id quire_build_id_header)
target_include_directories(quire_build_id INTERFACE ${quire_build_id_folder})

# Adds the target quire-BACKEND, the file libquire-BACKEND.so in `folder`.
function(quire_add_module backend folder)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(quire-${backend} MODULE ${ARG_SOURCES})
  target_link_libraries(quire-${backend} PRIVATE quire_options quire_build_id ${ARG_DEPS})
  quire_shared(quire-${backend})
  target_link_options(quire-${backend} PRIVATE
                      -Wl,--version-script=${PROJECT_SOURCE_DIR}/kernels/backend_module.map)
  set_target_properties(quire-${backend} PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${folder}
    LINK_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/backend_module.map)
endfunction()

# quire_backend_module(BACKEND SOURCES a.cc DEPS x y): builds lib/quire/libquire-BACKEND.so. A program in bin/ or
# tests/ finds it there. The module brings its own copy of all code that it uses, and exports one function.
function(quire_backend_module backend)
  quire_add_module(${backend} ${CMAKE_BINARY_DIR}/lib/quire ${ARGN})
  set_property(GLOBAL APPEND PROPERTY quire_backend_modules quire-${backend})
endfunction()

# quire_test_module(BACKEND SOURCES a.cc): a module that only a test opens, in tests/modules/.
function(quire_test_module backend)
  quire_add_module(${backend} ${CMAKE_BINARY_DIR}/tests/modules ${ARGN} DEPS absl::status absl::statusor absl::strings)
endfunction()
