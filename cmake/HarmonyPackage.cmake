# The Debian package: `cpack` in the build tree makes it (cpack -G DEB). What computes on GPUs is not in it: it needs
# libraries that no package of Debian has.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME harmony)
set(CPACK_PACKAGE_VENDOR Harmony)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};harmony;harmony;/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${HARMONY_LIBTORCH}/lib ${site}/nvidia/cu13/lib)
# LibTorch is nearly all of it: 15 s and 116 MB, with gzip 25 s and 131 MB.
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
  ${CMAKE_SOURCE_DIR}/deploy/debian/conffiles ${CMAKE_SOURCE_DIR}/deploy/debian/postinst
  ${CMAKE_SOURCE_DIR}/deploy/debian/postrm ${CMAKE_SOURCE_DIR}/deploy/debian/prerm)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "training of deep networks larger than the memory of all devices")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Harmony trains deep networks whose training footprint exceeds the memory of
all devices of one machine together, with exactly the result of plain
synchronous training. This package has the programs, the service harmony
(not started by itself) and LibTorch for the CPU.")
set(CPACK_HARMONY_SOURCE_DIR ${CMAKE_SOURCE_DIR})
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_SOURCE_DIR}/cmake/PackageFacts.cmake)
include(CPack)
