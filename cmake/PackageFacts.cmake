# Read by each run of cpack: what may be others than when the tree was configured.

# v1.2 is 1.2; three commits later 1.2+3.g0123abc. Without such a tag, the project's version and all commits that there
# are, 0.1.0+417.g0123abc, so that a later package is an upgrade. Without git the project's version.
function(ask_git result)
  execute_process(COMMAND git -C ${CPACK_HARMONY_SOURCE_DIR} ${ARGN}
                  OUTPUT_VARIABLE answer ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(${result} "${answer}" PARENT_SCOPE)
endfunction()
ask_git(described describe --tags --match "v[0-9]*")
if(described MATCHES "^v([0-9.]+)-([0-9]+)-(g[0-9a-f]+)$")
  set(CPACK_PACKAGE_VERSION ${CMAKE_MATCH_1}+${CMAKE_MATCH_2}.${CMAKE_MATCH_3})
elseif(described MATCHES "^v([0-9.]+)$")
  set(CPACK_PACKAGE_VERSION ${CMAKE_MATCH_1})
else()
  ask_git(count rev-list --count HEAD)
  ask_git(commit rev-parse --short HEAD)
  if(count AND commit)
    string(APPEND CPACK_PACKAGE_VERSION +${count}.g${commit})
  endif()
endif()

# Who makes the package, by Debian's own variables.
if(DEFINED ENV{DEBEMAIL})
  set(CPACK_DEBIAN_PACKAGE_MAINTAINER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
else()
  set(CPACK_DEBIAN_PACKAGE_MAINTAINER "Harmony <harmony@localhost>")
endif()

find_program(SHLIBDEPS dpkg-shlibdeps)
if(SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
else()
  message(FATAL_ERROR "there is no dpkg-shlibdeps, which finds the packages that programs depend on: "
                      "apt install dpkg-dev")
endif()
