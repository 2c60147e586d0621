# Writes the header OUTPUT, which defines the build id of backend modules: VERSION, and a digest of FLAGS and of
# the content of HEADERS.
set(content "${FLAGS}")
foreach(header ${HEADERS})
  file(SHA256 ${header} digest)
  string(APPEND content " ${digest}")
endforeach()
string(SHA256 digest "${content}")
string(SUBSTRING ${digest} 0 16 digest)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once

#define QUIRE_BUILD_ID \"${VERSION}-${digest}\"
")
