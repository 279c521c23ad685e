#pragma once

// glibc 2.36 declares pidfd_open and pidfd_send_signal without C linkage.
extern "C" {
#include <sys/pidfd.h>
}
