#pragma once

// What a profile can be believed. It is measured in seconds, on a machine that may do something
// else meanwhile: that makes some figures worse than they can be, and all of them uneven. PURE.

#include <string>

#include "common/profile/profile.h"

namespace harmony::profile {

// The profile with what cannot be put right. Other work makes what is measured slower, never
// faster; so of two figures that contradict each other the slower one gives way:
// - n devices that compute at once are each as fast as alone at best (`together` 1), and between
//   them as fast as one alone at worst (n);
// - a link is no faster when others are busy, and all links together are no slower than one alone;
// - more samples take no less time;
// - a backward of a layer within its group does all that its forward, its backward as the last of
//   its group, and a backward with what the forward kept do.
// A plan by such figures would avoid what it should use: devices, for example, of which a busy
// machine says that they stand in each other's way.
Profile Plausible(Profile profile);

// How uneven repeats of the same work were: the longest over the shortest, and of that the median
// over all layers' times, and over all links' rates. 1: nothing was repeated. Medians of repeats
// hide it, and are meant to: with five programs on two cores they lay 4% from the best repeat.
struct Spread {
  double layers = 1, links = 1;
};
Spread SpreadOf(const Profile& profile);

// Whether something else ran, as far as that shows; what ran all the time evenly does not, nor does
// much on links with a pace.
bool MeasuredUnderLoad(const Spread& spread);
// Of one that was: "some repeats took 2.4 times as long for a copy as others".
std::string DebugString(const Spread& spread);

}  // namespace harmony::profile
