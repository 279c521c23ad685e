# What an installation consists of, for deploy/install.sh (`cmake --install`) and for the Debian package (`cpack`). Only
# the build that people use can be installed: the others, for tests, have no worker or are instrumented.
if(NOT HARMONY_WITH_TORCH OR HARMONY_SANITIZE)
  return()
endif()

# Written by the program itself, so that they say what it does.
set(HARMONY_DOCUMENTS ${CMAKE_BINARY_DIR}/documents)
add_custom_command(
  OUTPUT ${HARMONY_DOCUMENTS}/harmony.1.gz ${HARMONY_DOCUMENTS}/harmony ${HARMONY_DOCUMENTS}/_harmony
  COMMAND ${CMAKE_COMMAND} -E make_directory ${HARMONY_DOCUMENTS}
  COMMAND sh -c "\"$1\" manual > harmony.1 && gzip -9nf harmony.1 && \"$1\" completion bash > harmony && \"$1\" completion zsh > _harmony"
          sh $<TARGET_FILE:harmony>
  WORKING_DIRECTORY ${HARMONY_DOCUMENTS}
  DEPENDS harmony COMMENT "Writing manual page and completion" VERBATIM)
add_custom_target(harmony_documents ALL DEPENDS ${HARMONY_DOCUMENTS}/harmony.1.gz)

set(programs harmony harmony-coordinator harmony-worker harmony-swapper harmony-compare)
if(HARMONY_CUDA)
  list(APPEND programs harmony-cuda)
endif()
install(TARGETS ${programs} DESTINATION bin COMPONENT harmony)

# LibTorch is no package of Debian: its libraries go along, to where nobody else looks. They find each other there, and
# the programs them, from wherever the whole is moved to.
set(private lib/harmony)
set_target_properties(harmony-worker PROPERTIES INSTALL_RPATH "$ORIGIN/../${private}")
cmake_path(GET HARMONY_LIBTORCH PARENT_PATH site)
set(libraries
  ${HARMONY_LIBTORCH}/lib/libtorch_cpu.so ${HARMONY_LIBTORCH}/lib/libc10.so ${HARMONY_LIBTORCH}/lib/libgomp.so.1
  ${site}/nvidia/cu13/lib/libcudart.so.13 ${site}/nvidia/cu13/lib/libcupti.so.13)
install(FILES ${libraries} DESTINATION ${private} COMPONENT harmony)
# What computes on GPUs, as large again, is a component of its own. The toolkit's libraries are looked for on the machine.
if(TARGET harmony_cuda_plugin)
  set_target_properties(harmony_cuda_plugin PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS harmony_cuda_plugin LIBRARY DESTINATION ${private} COMPONENT harmony_cuda)
  install(FILES
    ${HARMONY_LIBTORCH}/lib/libtorch_cuda.so ${HARMONY_LIBTORCH}/lib/libc10_cuda.so
    ${HARMONY_LIBTORCH}/lib/libtorch_cuda_linalg.so ${HARMONY_LIBTORCH}/lib/libtorch_nvshmem.so
    DESTINATION ${private} COMPONENT harmony_cuda)
endif()
install(PROGRAMS deploy/running.sh DESTINATION ${private} COMPONENT harmony)
foreach(part torch nvidia_cuda_runtime nvidia_cuda_cupti)
  file(GLOB licenses ${site}/${part}-*.dist-info/licenses/*)
  install(FILES ${licenses} DESTINATION share/doc/harmony/${part} COMPONENT harmony)
endforeach()

install(FILES README.md DESTINATION share/doc/harmony COMPONENT harmony)
install(FILES deploy/examples/job.yaml deploy/examples/cluster.yaml DESTINATION share/harmony/examples COMPONENT harmony)
install(FILES ${HARMONY_DOCUMENTS}/harmony.1.gz DESTINATION share/man/man1 COMPONENT harmony)
install(FILES ${HARMONY_DOCUMENTS}/harmony DESTINATION share/bash-completion/completions COMPONENT harmony)
install(FILES deploy/systemd/sysusers.conf DESTINATION lib/sysusers.d RENAME harmony.conf COMPONENT harmony)
install(CODE "set(HARMONY_DOCUMENTS \"${HARMONY_DOCUMENTS}\")" COMPONENT harmony)
install(SCRIPT cmake/InstallByPrefix.cmake COMPONENT harmony)

include(HarmonyPackage)
