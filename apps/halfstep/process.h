// What the program settles with the system before and after it works: standard streams that are
// not there, signals that would end it where an error is better, and output that nobody could
// write. Called by main, on its thread, with no other running.
#pragma once

#include <string_view>

namespace halfstep::apps {

// First of all: opens /dev/null on closed standard streams, so that no file of ours becomes one of
// them, and lets a write beyond the limit of a file's size fail instead of ending the process.
void prepare_process();

// Starts the program anew, as it was called, with OpenMP told to let waiting threads sleep soon,
// unless the user has said how they should wait. Its own default spins for milliseconds: on a
// machine that others use too, that keeps the thread that is waited for from running
// (docs/architecture.md has figures). OpenMP reads its variables when it is loaded, before main.
// Returns if there is nothing to do, or no way to do it.
void shorten_waits(char** argv);

// Onto standard error, where it can be written. Never throws.
void print_error(std::string_view text);

// Writes out what standard output still holds. Returns 0, or the errno of why it could not be
// written, now or before.
int finish_output();

}  // namespace halfstep::apps
