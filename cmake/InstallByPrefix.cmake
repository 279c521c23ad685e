# Run by each installation: what depends on the folder that it goes to.
set(deploy ${CMAKE_CURRENT_LIST_DIR}/../deploy)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(configuration /etc/harmony)
  set(zsh share/zsh/vendor-completions)  # Debian's, for packages
else()
  set(configuration ${CMAKE_INSTALL_PREFIX}/etc/harmony)
  set(zsh share/zsh/site-functions)
endif()

file(INSTALL ${HARMONY_DOCUMENTS}/_harmony DESTINATION ${CMAKE_INSTALL_PREFIX}/${zsh})

# What somebody has changed there stays.
if(NOT EXISTS $ENV{DESTDIR}${configuration}/cluster.yaml)
  file(INSTALL ${deploy}/examples/cluster.yaml DESTINATION ${configuration})
endif()

# The units name program and configuration in full. Limits and hardening are written down once, in harmony.service: its
# last part, between the line that says so and [Install].
file(READ ${deploy}/systemd/harmony.service launcher)
string(REGEX REPLACE "^.*\n# Limits and hardening[^\n]*\n" "" limits "${launcher}")
string(REGEX REPLACE "\n\n\\[Install\\].*$" "" limits "${limits}")
foreach(name harmony.service harmony.target harmony-processes.target harmony-memory.service harmony-coordinator.socket
        harmony-coordinator.service harmony-swapper.service harmony-host.service harmony-worker@.service)
  set(unit ${CMAKE_INSTALL_PREFIX}/lib/systemd/system/${name})
  file(READ ${deploy}/systemd/${name} text)
  string(REPLACE "@LIMITS_AND_HARDENING@" "${limits}" text "${text}")
  string(REPLACE "/usr/bin/harmony" "${CMAKE_INSTALL_PREFIX}/bin/harmony" text "${text}")
  string(REPLACE "/etc/harmony" "${configuration}" text "${text}")
  file(WRITE $ENV{DESTDIR}${unit} "${text}")
  file(CHMOD $ENV{DESTDIR}${unit} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  message(STATUS "Installing: $ENV{DESTDIR}${unit}")
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES ${unit})
endforeach()
