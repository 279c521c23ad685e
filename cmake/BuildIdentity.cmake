# Run in each build: writes OUTPUT, which says what the build was made from. By the contents of the sources, so that a
# tree without git has an identity as well, and one with changes another than without; written only when it changes.
file(GLOB_RECURSE sources RELATIVE ${SOURCE_DIR}
     ${SOURCE_DIR}/client/*.cc ${SOURCE_DIR}/client/*.h ${SOURCE_DIR}/common/*.cc ${SOURCE_DIR}/common/*.h
     ${SOURCE_DIR}/coordinator/*.cc ${SOURCE_DIR}/coordinator/*.h ${SOURCE_DIR}/swapper/*.cc ${SOURCE_DIR}/swapper/*.h
     ${SOURCE_DIR}/worker/*.cc ${SOURCE_DIR}/worker/*.h ${SOURCE_DIR}/proto/*.proto)
list(SORT sources)
set(digests "${VERSION} ${BUILD_TYPE}")
foreach(source IN LISTS sources)
  file(SHA256 ${SOURCE_DIR}/${source} digest)
  string(APPEND digests "\n${source} ${digest}")
endforeach()
string(SHA256 identity "${digests}")
string(SUBSTRING ${identity} 0 12 identity)
set(text "#include \"common/base/build_identity.h\"

namespace harmony {

const char* BuildIdentity() { return \"${VERSION}+${identity}\"; }

}  // namespace harmony
")
set(before "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT before STREQUAL text)
  file(WRITE ${OUTPUT} "${text}")
endif()
