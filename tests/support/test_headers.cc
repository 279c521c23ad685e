// Holds the precompiled headers of the tests (cmake/HarmonyTargets.cmake).
